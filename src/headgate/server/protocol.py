"""HTTP/1.1 on a connection: httptools reads it, and the application answers, by ASGI.

uvicorn's own protocol does more for each request than these need: it writes an answer in two pieces, starts and stops a
timer, and checks headers that only this program writes (docs/adr/0010 has what that costs). And this one sends away
who dawdles, and who comes when there are too many.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import deque
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
import msgspec

from .deadlines import Deadlines

log = logging.getLogger("headgate.server")

HEAD_BYTES = 64 * 1024  # of a request: its line and its headers
UNREAD_BYTES = 64 * 1024  # of a body, until the application has asked for it
RESERVED = 100  # files that the process needs for other things: the database, the log, Python itself

_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

Event = MutableMapping[str, Any]


def most_connections(asked: int) -> int:
    """How many callers may be connected at once: so many, but no more than there are files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if files == resource.RLIM_INFINITY else min(asked, max(files - RESERVED, 1))


class Protocol(asyncio.Protocol):
    """One connection, as uvicorn's server makes it. Its requests are answered in their order, one at a time."""

    _transport: asyncio.Transport

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.app = config.loaded_app
        self.loop = _loop or asyncio.get_running_loop()
        self._service = config.app.service
        self._server = server_state
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is passed over, here
        self._about: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
        self._requests: deque[Request] = deque()  # the first one is in work
        self._due: Deadlines | None = None  # what ends this connection when nothing comes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._is_in_head = False
        self._is_closing = False  # nothing is read any more
        self._is_paused = False  # there is enough to do
        self._is_clogged = False  # the caller does not read its answers
        self.is_gone = False

    # Of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._about |= {
            "scheme": "http", "root_path": "", "client": transport.get_extra_info("peername"),
            "server": transport.get_extra_info("sockname"),
        }  # fmt: skip
        if len(self._server.connections) > self._service.most_connections:
            self._service.metrics.refused += 1
            self._refuse(503, "too_many_connections", "the server has too many connections", b"retry-after: 1\r\n")
        else:
            self._wait(self._service.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.is_gone = self._is_closing = True
        self._wait(None)
        for request in self._requests:
            request.wake()

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        if self._requests:
            self._go_on()

    def shutdown(self) -> None:
        """The server stops: what is in work is answered, what is not begun is not."""
        if not self._requests:
            self._close()
        elif self._requests[-1].is_whole:
            self._end_of_requests()
        else:
            self._requests[-1].keep_alive = False

    def expire(self) -> None:
        """Nothing came in time."""
        is_too_slow, self._due = self._due is self._service.heads, None
        if is_too_slow and self._is_in_head and not self._requests:
            self._refuse(408, "too_slow", "the request's head did not come in time")
        elif self._is_clogged:
            self._transport.abort()
        else:
            self._close()

    # Of what arrives

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        was_in_head = self._is_in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # to something that is not spoken here: it is answered as if not asked for
            self._end_of_requests()
        except httptools.HttpParserError:
            self._broken()
        if self._is_in_head:
            if was_in_head:
                self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "head_too_large", f"the request's head is larger than {HEAD_BYTES} bytes")
            elif self._due is not self._service.heads:  # most requests come whole, and need no timer
                self._wait(self._service.heads)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._is_closing:
            return
        if self._due is not None:
            self._wait(None)
        parser, url = self._parser, self._url
        if url[:1] != b"/":  # as to a proxy
            parsed = httptools.parse_url(url)
            url = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
        raw_path, _, query = url.partition(b"#")[0].partition(b"?")
        path = raw_path.decode("latin-1")
        version = parser.get_http_version()
        scope = {
            **self._about, "http_version": version, "method": parser.get_method().decode("latin-1"),
            "path": unquote(path) if "%" in path else path, "raw_path": raw_path, "query_string": query,
            "headers": self._headers,
        }  # fmt: skip
        request = Request(self, scope, keep_alive=version == "1.1" and parser.should_keep_alive())
        self._requests.append(request)
        if len(self._requests) == 1:
            self._begin(request)
        else:
            self._pause()

    def on_body(self, body: bytes) -> None:
        if not self._is_closing and self._requests[-1].arrived(body) > UNREAD_BYTES:
            self._pause()

    def on_message_complete(self) -> None:
        if self._is_closing:
            return
        request = self._requests[-1]
        request.is_whole = True
        request.wake()
        if not request.keep_alive:
            self._end_of_requests()
        if request.is_answered:
            self._go_on()

    def _end_of_requests(self) -> None:
        self._is_closing = True
        if self._requests:
            self._requests[-1].keep_alive = False

    def _broken(self) -> None:
        """What came is no HTTP. What was asked for before is answered; a request that it belongs to is not whole."""
        if self._requests:
            self._end_of_requests()
            last = self._requests[-1]
            last.is_broken = not last.is_whole
            last.wake()
        else:
            self._refuse(400, "bad_request", "this is no HTTP request")

    # Of what is answered

    def _begin(self, request: Request) -> None:
        task = self.loop.create_task(self.app(request.scope, request.receive, request.send))
        self._server.tasks.add(task)
        task.add_done_callback(request.ended)

    def answer(self, request: Request, head: list[bytes], body: bytes) -> None:
        """Writes an answer, in one piece."""
        if self.is_gone:
            return
        if not request.keep_alive:
            head.append(b"connection: close\r\n")
        head += (b"\r\n", body)
        self._transport.write(b"".join(head))
        self._server.total_requests += 1
        self._go_on()

    def ended(self, request: Request, task: asyncio.Task[None]) -> None:
        """The application is done with a request. It answers each, unless the server is stopped in the middle."""
        self._server.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
        if not request.is_answered and not self.is_gone:
            self._close()

    def _go_on(self) -> None:
        """To the next request, once the first one is answered, and its rest has been read."""
        first = self._requests[0]
        if not first.is_answered:
            return
        if self._is_clogged:
            self._wait(self._service.idle)
        elif not first.keep_alive:
            self._close()
        elif not first.is_whole:  # nobody wants it, but the answer would be lost if it were not taken
            self._wait(self._service.heads)
            self.read_on()
        else:
            self._requests.popleft()
            if self._requests:
                self._begin(self._requests[0])
            else:
                self._wait(self._service.idle)
            self.read_on()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Reads, unless there is enough to do."""
        if self._is_paused and len(self._requests) < 2 and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def write_continue(self) -> None:
        """The caller waits to be asked for the body."""
        if not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, status: int, code: str, message: str, more: bytes = b"") -> None:
        """Answers what is not worth a request, and hangs up."""
        self._is_in_head = False
        body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": None}})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        if not self._transport.is_closing():
            self._transport.write(_STATUS[status] + more + head + body)
        self._close()

    def _close(self) -> None:
        self._is_closing = True
        self._wait(None)
        self._transport.close()

    def _wait(self, due: Deadlines | None) -> None:
        """So long may nothing come."""
        if self._due is not None:
            self._due.remove(self)
        self._due = due
        if due is not None:
            due.add(self)


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
        head = [_STATUS[self._answer["status"]]]
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
