"""HTTP connections: uvicorn's, but not too many, with answers written at once and senders that dawdle sent away."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request: its line and its headers
RESERVED = 100  # files that the process needs for other things: the database, the log, Python itself


def most_connections(asked: int) -> int:
    """How many callers may be connected at once: so many, but no more than there are files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if files == resource.RLIM_INFINITY else min(asked, max(files - RESERVED, 1))


class Joined:
    """A transport that writes what comes in one turn of the loop together.

    An answer comes in two pieces, head and body: one packet is half the work for both ends.
    """

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held + data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """One connection.

    A request's head has a limit of bytes and of time; that of its body is the application's matter.
    """

    _is_in_head = False
    _is_refused = False
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        service = self.config.app.service  # type: ignore[union-attr]
        if len(self.connections) > service.most_connections:
            self._is_refused = True
            service.metrics.refused += 1
            self._refuse(503, "too_many_connections", "the server has too many connections", b"retry-after: 1\r\n")
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if self._is_in_head and was_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "head_too_large", f"the request's head is larger than {HEAD_BYTES} bytes")
        # Most requests come whole, and need no timer.
        if self._timer is None and self._is_waiting and self.timeout_keep_alive_task is None:
            self._arm()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._disarm()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", "this is no HTTP request")

    @property
    def _is_waiting(self) -> bool:
        """Whether nothing is in work here: a head is to come, or its rest, or the rest of a body nobody reads."""
        return self._is_in_head or self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.config.app.service.settings.head_timeout, self._too_slow)  # type: ignore[union-attr]

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._is_in_head and (self.cycle is None or self.cycle.response_complete):  # type: ignore[redundant-expr]
            self._refuse(408, "too_slow", "the request's head did not come in time")
        elif self._is_waiting:
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str, more: bytes = b"") -> None:
        """Answers what is not worth a request, and hangs up."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": None}})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + more + head + body)
        self.transport.close()
