"""HTTP connections that cost little: the load shares the machine with what it measures.

Requests are made beforehand as bytes, and of an answer only the status, the length and the body are looked at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

Answered = Callable[[bytes], bytes | None]  # told the body of an answer; returns the next request, or None at the end
LATER = b""  # instead of the next request: it comes with `send`


class CallFailed(Exception):
    """An answer that is not a success, or a connection that ended."""


class WireConnection(asyncio.Protocol):
    """One connection that is kept: a request, its answer, the next. It is done when there is no next one."""

    def __init__(self, first: bytes, answered: Answered) -> None:
        self._first = first
        self._answered = answered
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._first)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            self._buffer = buffer
            return
        length = _length(buffer, end)
        if len(buffer) < end + length:
            self._buffer = buffer
            return
        self._buffer = b""
        body = buffer[end : end + length]
        if buffer[9:10] != b"2":
            self._end(CallFailed(f"{buffer[9:12].decode()}: {body[:500].decode(errors='replace')}"))
            return
        try:
            following = self._answered(body)
        except Exception as error:
            self._end(error)
            return
        if following is None:
            self._end(None)
        elif following and self._transport is not None:
            self._transport.write(following)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(CallFailed(f"the connection was lost: {error}"))

    def send(self, request: bytes) -> None:
        """A request beside the turn of answers: the last one must have been answered."""
        assert self._transport is not None
        self._transport.write(request)

    def close(self) -> None:
        """Hangs up."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)
        if self._transport is not None:
            self._transport.close()


def _length(buffer: bytes, end: int) -> int:
    at = buffer.find(b"content-length: ", 0, end) + 16
    return int(buffer[at : buffer.find(b"\r", at)]) if at >= 16 else 0


async def open_lines(url: str, lines: list[WireConnection]) -> None:
    """Connects them all, and with that sends their first requests."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    loop = asyncio.get_running_loop()
    for start in range(0, len(lines), 100):  # a few at once: the server's queue of new connections is finite
        made = [loop.create_connection(partial(_given, line), host, int(port)) for line in lines[start : start + 100]]
        await asyncio.gather(*made)


def _given(line: WireConnection) -> WireConnection:
    return line


def request(token: str, method: str, path: str, body: Any = None) -> bytes:
    """A request as bytes. A body of bytes is JSON already."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    if content:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def call(url: str, wanted: bytes) -> bytes:
    """One request on a connection of its own; its answer's body."""
    bodies: list[bytes] = []
    line = WireConnection(wanted, bodies.append)
    await open_lines(url, [line])
    await line.done
    return bodies[0]
