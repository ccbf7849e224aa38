"""One request on a connection and its answer, as ASGI has them; `protocol` reads and writes the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocol import Protocol

STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

Event = MutableMapping[str, Any]


class Request:
    """One request and its answer."""

    __slots__ = (
        "_answer", "_is_asked_for", "_news", "_parts", "_protocol", "_size", "_waiter", "is_answered", "is_broken",
        "is_whole", "keep_alive", "scope",
    )  # fmt: skip

    def __init__(self, protocol: Protocol, scope: dict[str, Any], *, keep_alive: bool) -> None:
        self._protocol = protocol
        self._parts: list[bytes] = []
        self._size = 0
        self._news = False  # something of the body that the application has not got
        self._is_asked_for = False
        self._waiter: asyncio.Future[None] | None = None
        self._answer: Event | None = None
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_whole = self.is_broken = self.is_answered = False

    def arrived(self, part: bytes) -> int:
        """A part of the body is here. How much is kept."""
        if self.is_answered:
            return 0
        self._parts.append(part)
        self._size += len(part)
        self.wake()
        return self._size

    def wake(self) -> None:
        """There is news."""
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Event:
        """ASGI's: the body, a part or all of it; afterwards, that the caller has gone."""
        protocol = self._protocol
        if not self._news and not self.is_whole and not self._is_asked_for:
            self._is_asked_for = True
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.scope["headers"]):
                protocol.write_continue()
        protocol.read_on()
        while not self._news and not protocol.is_gone and not self.is_answered:
            self._waiter = protocol.loop.create_future()
            await self._waiter
        self._news = False
        if protocol.is_gone or self.is_answered or self.is_broken:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, event: Event) -> None:
        """ASGI's: the head of the answer, then its body, whole."""
        if self._answer is None:
            self._answer = event
            return
        head = [STATUS[self._answer["status"]]]
        for name, value in self._answer["headers"]:
            head += (name, b": ", value, b"\r\n")
            if name == b"connection":
                self.keep_alive = False
        self.is_answered = True
        self.wake()
        self._protocol.answer(self, head, event["body"])

    def ended(self, task: asyncio.Task[None]) -> None:
        """The application is done with it."""
        self._protocol.ended(self, task)
