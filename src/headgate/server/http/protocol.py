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
from typing import Any, cast
from urllib.parse import unquote

import httptools
import msgspec

from .exchange import STATUS, Request
from .limits import Deadlines

log = logging.getLogger("headgate.server")

HEAD_BYTES = 64 * 1024  # of a request: its line and its headers; and of what stands around the parts of its body
MOST_HEADERS = 200  # of a request
UNREAD_BYTES = 64 * 1024  # of a body, until the application has asked for it
PIECE = 8 * 1024  # bytes that are parsed at once: requests take up far more than their bytes
LARGE_BODY = 32 * 1024  # bytes of an answer that are written as they are: many callers may wait for the same ones
RESERVED = 100  # files that the process needs for other things: the database, the log, Python itself


def most_connections(asked: int) -> int:
    """How many callers may be connected at once: so many, but no more than there are files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if files == resource.RLIM_INFINITY else min(asked, max(files - RESERVED, 1))


def _fault(version: str, headers: list[tuple[bytes, bytes]]) -> str | None:
    """What the parser lets pass, and others on the way may read otherwise."""
    hosts = tokens = 0
    if version not in ("1.1", "1.0"):
        return "HTTP/1.1 and HTTP/1.0 are spoken here"
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"authorization":
            tokens += 1
        elif name == b"transfer-encoding" and (version != "1.1" or value.lower() != b"chunked"):
            return "the only Transfer-Encoding that is known here is chunked, in HTTP/1.1"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return "a request names one Host"
    if tokens > 1:
        return "a request has one Authorization"
    return None


class Protocol(asyncio.Protocol):
    """One connection, as uvicorn's server makes it. Its requests are answered in their order, one at a time."""

    _transport: asyncio.Transport

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.app = config.loaded_app
        self.loop = _loop or asyncio.get_running_loop()
        self._server = config.app.server
        self._uvicorn = server_state
        self._parser = self._new_parser()
        self._about: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
        self._requests: deque[Request] = deque()  # the first one is in work
        self._due: Deadlines | None = None  # what ends this connection when nothing comes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._around_bytes = 0  # that came since the last part of a body: trailers, extensions of chunks
        self._is_in_head = False
        self._is_known = False  # the head that is being parsed: see _pass_upgrade
        self._has_moved = False  # the body went on, or the request ended, in what has just arrived
        self._is_closing = False  # nothing is read any more
        self._is_paused = False  # there is enough to do
        self._rest = b""  # what had arrived by then, and is not parsed yet
        self._is_clogged = False  # the caller does not read its answers
        self.is_gone = False

    # Of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._uvicorn.connections.add(self)
        self._about |= {
            "scheme": "http", "root_path": "", "client": transport.get_extra_info("peername"),
            "server": transport.get_extra_info("sockname"), "headgate.has_hung_up": lambda: self.is_gone,
        }  # fmt: skip
        if len(self._uvicorn.connections) > self._server.most_connections:
            self._server.metrics.refused += 1
            self._refuse(503, "too_many_connections", "the server has too many connections", b"retry-after: 1\r\n")
        else:
            self._wait(self._server.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._uvicorn.connections.discard(self)
        self._server.siblings.closed()
        self.is_gone = self._is_closing = True
        self._wait(None)
        for request in self._requests:
            request.wake()
        # so that nothing of it waits for the garbage collector, which comes rarely here
        self._requests.clear()
        self._about.clear()
        self._rest = b""
        del self._parser

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
        is_too_slow, self._due = self._due is self._server.heads, None
        if is_too_slow and self._is_in_head and not self._requests:
            self._refuse(408, "too_slow", "the request's head did not come in time")
        elif self._is_clogged:
            self._transport.abort()
        else:
            self._close()

    # Of what arrives

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
        elif len(data) <= PIECE:
            self._take(data)
        else:
            self._take_in_pieces(data)

    def _take_in_pieces(self, data: bytes) -> None:
        """Until there is enough to do. The rest waits as bytes."""
        for start in range(0, len(data), PIECE):
            if self._is_paused:
                self._rest = data[start:]
                return
            self._take(data[start : start + PIECE])

    def _take(self, data: bytes) -> None:
        if self._is_closing:
            return
        was_in_head = self._is_in_head
        self._has_moved = False
        self._parse(memoryview(data))
        if self._is_in_head:
            if was_in_head:
                self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, "head_too_large", f"the request's head is larger than {HEAD_BYTES} bytes")
            elif self._due is not self._server.heads:  # most requests come whole, and need no timer
                self._wait(self._server.heads)
        elif self._has_moved:
            self._around_bytes = 0
        else:
            self._around_bytes += len(data)
            if self._around_bytes > HEAD_BYTES:
                self._broken()

    def _parse(self, data: memoryview) -> None:
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._pass_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._broken()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is passed over, here
        return parser

    def _pass_upgrade(self, rest: memoryview) -> memoryview:
        """The caller would like to speak something else, which is not spoken here: it is answered as if it had not said
        so. But the parser takes all that follows for the other protocol. A new one goes on behind the head, and is told
        how the body is framed."""
        if self._is_closing:
            return rest[:0]
        if self._parser.get_method() == b"CONNECT":  # what follows is not for us
            self._requests[-1].is_whole = True
            self._end_of_requests()
            return rest[:0]
        framing = [
            b"%s: %s\r\n" % header for header in self._headers if header[0] in (b"content-length", b"transfer-encoding")
        ]
        self._parser = self._new_parser()
        self._is_known = True
        self._parser.feed_data(b"".join((b"POST / HTTP/1.1\r\n", *framing, b"\r\n")))
        self._is_known = False
        return rest

    def on_message_begin(self) -> None:
        if self._is_known:
            return
        self._is_in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        if not self._is_known:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # trailers say nothing here
            self._headers.append((name.lower(), value.strip(b" \t")))
            if len(self._headers) > MOST_HEADERS and not self._is_closing:
                if self._requests:  # those before it are answered
                    self._end_of_requests()
                else:
                    self._refuse(431, "head_too_large", f"the request has more than {MOST_HEADERS} headers")
                self._is_in_head = False

    def on_headers_complete(self) -> None:
        if self._is_known:
            return
        self._is_in_head = False
        self._has_moved = True
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
        if (fault := _fault(version, self._headers)) is not None:
            if self._requests:  # those before it are answered
                self._end_of_requests()
            else:
                self._refuse(400, "bad_request", fault)
            return
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

    def on_chunk_header(self) -> None:
        self._has_moved = True

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        if not self._is_closing and self._requests[-1].arrived(body) > UNREAD_BYTES:
            self._pause()

    def on_message_complete(self) -> None:
        self._has_moved = True
        if self._is_closing or self._parser.should_upgrade():
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
        self._uvicorn.tasks.add(task)
        task.add_done_callback(request.ended)

    def answer(self, request: Request, head: list[bytes], body: bytes) -> None:
        """Writes an answer, in one piece unless it is large."""
        if self.is_gone:
            return
        if not request.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"\r\n")
        if len(body) < LARGE_BODY:
            head.append(body)
            self._transport.write(b"".join(head))
        else:
            self._transport.writelines((b"".join(head), body))
        self._uvicorn.total_requests += 1
        self._go_on()

    def ended(self, request: Request, task: asyncio.Task[None]) -> None:
        """The application is done with a request. It answers each, unless the server is stopped in the middle."""
        self._uvicorn.tasks.discard(task)
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
            self._wait(self._server.idle)
        elif not first.keep_alive:
            self._close()
        elif not first.is_whole:  # nobody wants it, but the answer would be lost if it were not taken
            self._wait(self._server.heads)
            self.read_on()
        else:
            self._requests.popleft()
            if self._requests:
                self._begin(self._requests[0])
            else:
                self._wait(self._server.idle)
            self.read_on()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            if self._transport.is_reading():  # not where only the rest was being parsed
                self._transport.pause_reading()

    def read_on(self) -> None:
        """Reads, unless there is enough to do."""
        if self._is_paused and len(self._requests) < 2 and not self._transport.is_closing():
            self._is_paused = False
            if self._rest:
                rest, self._rest = self._rest, b""
                self._take_in_pieces(rest)
            if not self._is_paused and not self._transport.is_reading():
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
            self._transport.write(STATUS[status] + more + head + body)
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
