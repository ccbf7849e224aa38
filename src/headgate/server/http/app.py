"""The ASGI application: match, check, decode, one handler, encode."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from ... import tracing
from ...aio.suggesting import suggest
from ...errors import ConnectionFailed, ConsumerNotFound, Error, StreamNotFound
from ..api.routes import ROUTES
from ..console import assets, sessions
from ..intake.webhooks import sender
from ..operate import auditing, pages
from ..operate.auth import ANYBODY, Caller, refuse_pages
from ..server import Server
from .errors import Problem, problem
from .limits import Gauge
from .memory import LARGE, release
from .routing import Call, Route

log = logging.getLogger("headgate.server")
access = logging.getLogger("headgate.access")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]  # status, content type, body, more headers

_encode = msgspec.json.Encoder().encode
JSON = b"application/json"
UNTRACED = {"/healthz", "/readyz", "/metrics"}  # asked for every few seconds by programs
_QUIET = contextlib.nullcontext()
_NOT_TO_BE_KEPT = (b"cache-control", b"no-store")
_TO_BE_ASKED_FOR = (b"cache-control", b"no-cache")


class App:
    """Answers requests of one process."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # a WebSocket
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.server.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.server.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        began = perf_counter()
        method = scope["method"]
        headers = dict(scope["headers"])
        work = _Work(self.server, scope, headers, receive)
        parent, state = headers.get(b"traceparent"), headers.get(b"tracestate")
        given = parent.decode("latin-1") if parent else None, state.decode("latin-1") if state else None
        with _QUIET if scope["path"] in UNTRACED else tracing.serving(method, *given) as span:
            work.trace = span.carried if span is not None else tracing.passed_on(*given)
            status, kind, body, more = await self._answer(work, scope)
            if span is not None:
                _describe(span, work, scope, status)
            seconds = perf_counter() - began - work.waited
            self._log(work, method, status, seconds)
        # Who has no token leaves no note: else anybody could fill the log.
        if work.is_administrative and work.caller is not None:
            address = scope["client"][0] if scope.get("client") else None
            action = f"{method} {scope['path']}"
            await self.server.audit(auditing.note(work.caller, address, action, status, *work.to_audit()))
        route = work.route
        self.server.metrics.request(route.path if route else "-", method if route else "-", status, seconds)
        # a GET may receive messages: nothing on the way may answer it from memory
        head = [(b"content-type", kind), *more]
        if status != 304:
            head.append((b"content-length", b"%d" % len(body)))
        if _TO_BE_ASKED_FOR not in more:
            head.append(_NOT_TO_BE_KEPT)
        if len(body) > LARGE:
            self.server.memory.trim_soon()
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    async def _answer(self, work: _Work, scope: MutableMapping[str, Any]) -> Answer:
        try:
            return await work.answer()
        except Exception as error:
            try:
                return await self._explain(error, work, scope)
            finally:
                release(error)
        finally:
            work.close()

    async def _explain(self, error: Exception, work: _Work, scope: MutableMapping[str, Any]) -> Answer:
        """What the caller is told when a request failed."""
        if isinstance(error, Problem):
            return _problem(error)
        if isinstance(error, Error):
            if isinstance(error, ConnectionFailed):
                self.server.availability.suspect()
            if work.path:
                self.server.forget(error, work.path.get("stream"), work.path.get("consumer"))
            if isinstance(error, (StreamNotFound, ConsumerNotFound)):  # calls in a group do not say which they were
                named = [work.path[name] for name in ("stream", "consumer") if name in work.path]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(suggest(self.server.hg, error, named), 1)
            found = problem(error, work.caller.may_use if work.caller else None)
            if found.status == 500:
                log.exception("%s %s failed", scope["method"], scope["path"])
            return _problem(found)
        if isinstance(error, TimeoutError):
            if not work.is_reading:
                self.server.availability.suspect()
                hint = "whether it was done is not known; send messages with an id, and repeat the call"
                return _problem(Problem(503, "timeout", "it took too long", hint, 1.0))
            # the rest of the body may still come: nothing else can be sent on this connection
            found = Problem(408, "too_slow", "the request's body did not come in time", "send it without a break")
            status, kind, body, more = _problem(found)
            return status, kind, body, [*more, (b"connection", b"close")]
        log.exception("%s %s failed", scope["method"], scope["path"])
        return _problem(Problem(500, "internal", "something went wrong in the server", "look in the server's log"))

    def _log(self, work: _Work, method: str, status: int, seconds: float) -> None:
        """The line of the access log. The route, not the path: and of the token only its id."""
        level = logging.INFO if self.server.settings.access_log else logging.DEBUG
        if access.isEnabledFor(level):
            route = work.route.path if work.route else "-"
            fields = {
                "method": method[:20],
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 3),
                "waited_ms": round(work.waited * 1000, 3),
                "token": work.caller.id if work.caller else None,
            }
            access.log(level, "%s %s %s", fields["method"], route, status, extra=fields)


class _Work:
    """The steps of one request, and what they hold until it is answered."""

    __slots__ = (
        "_bodies", "_call", "_headers", "_held", "_in_work", "_receive", "_scope", "_server", "caller", "is_reading",
        "path", "route", "trace",
    )  # fmt: skip

    def __init__(
        self, server: Server, scope: MutableMapping[str, Any], headers: dict[bytes, bytes], receive: Receive
    ) -> None:
        self._server = server
        self._scope = scope
        self._headers = headers
        self._receive = receive
        self._call: Call | None = None
        self._held = 0  # bytes
        self._bodies = server.bodies
        self._in_work: Gauge | None = None
        self.is_reading = False  # the body
        self.caller: Caller | None = None
        self.route: Route | None = None
        self.path: dict[str, str] = {}
        self.trace: tracing.Carried | None = None  # for messages that are sent

    @property
    def waited(self) -> float:
        return self._call.waited if self._call else 0.0

    @property
    def is_administrative(self) -> bool:
        route = self.route
        return route is not None and route.is_administrative

    def to_audit(self) -> tuple[str | None, str | None]:
        """The stream that the call is about, and what it asked for."""
        assert self.route is not None
        body, noted = (self._call.body, self._call.noted) if self._call is not None else (None, {})
        stream = auditing.stream_of(body, self.path, self.route.path)
        return stream, auditing.details(body, self.path, noted)

    async def answer(self) -> Answer:
        server, scope = self._server, self._scope
        raw_path = scope.get("raw_path") or scope["path"].encode()
        route, self.path = ROUTES.match(scope["method"], raw_path.partition(b"?")[0])
        self.route = route
        if server.availability.is_away and route.needs_database:
            raise problem(server.availability.error)
        caller = ANYBODY
        if route.raw_body:
            await self._enter_webhook()
        if route.scope is not None:
            self._enter(server.in_work)
            self.caller = caller = await self._authenticate(route.patience)
            caller.check(route.scope, self.path.get("stream"), route.everywhere)
        query = _query(route, scope["query_string"])
        with server.deadlines.of_this_task() as limit:
            body = await self._body(route)
            self._call = Call(server, route, caller, self.path, query, body, self._receive, self._headers)
            self._call.has_hung_up = scope.get("headgate.has_hung_up")
            self._call.limit = limit
            self._call.trace = self.trace
            data = await route.handler(self._call)
        if isinstance(route.response, str):
            kind = route.response.encode()
            if isinstance(data, assets.File):
                return self._file(data, self._call.sent)
            return route.status, kind, data, pages.GUARDS if kind == pages.HTML else []
        if route.page is not None and pages.is_wanted(self._headers.get(b"accept", b"")):
            return route.status, pages.HTML, route.page(), assets.GUARDS
        whole = {"data": data} if self._call.next is None else {"data": data, "next": self._call.next}
        return route.status, JSON, _encode(whole), self._call.sent

    def _file(self, file: assets.File, headers: list[tuple[bytes, bytes]]) -> Answer:
        """A file, unless the browser has it. It asks each time: another version of the server has others."""
        if self._headers.get(b"if-none-match") == file.tag:
            return 304, file.kind, b"", [*headers, _TO_BE_ASKED_FOR]
        return 200, file.kind, file.content, [*headers, _TO_BE_ASKED_FOR]

    def _enter(self, gauge: Gauge) -> None:
        gauge.enter()
        self._in_work = gauge

    async def _enter_webhook(self) -> None:
        """Anybody may send one: limits of their own, and no body is taken for a source that there is not."""
        server, client = self._server, self._scope.get("client")
        server.webhook_rates.spend(
            sender(client[0] if client else None), server.settings.webhook_rate_limit, "this address"
        )
        self._enter(server.webhooks_in_work)
        self._bodies = server.webhook_bodies
        await server.sources.find(self.path["source"])

    async def _authenticate(self, patience: float | None) -> Caller:
        server = self._server
        if not server.settings.auth:
            refuse_pages(self._headers, server.settings.host)
            return ANYBODY
        if server.availability.is_away and (patience is None or not server.hg.is_open):
            raise problem(server.availability.error)
        shown = self._headers.get(b"authorization") or sessions.authorization(self._headers)
        caller = await server.tokens.caller(shown, patience)
        if (rate := caller.rate_limit or server.settings.rate_limit) is not None:
            server.rates.spend(caller.id, rate)
        return caller

    async def _body(self, route: Route) -> Any:
        if route.scope is None and not route.raw_body:
            return None  # nobody without a token has anything kept here
        given = self._headers.get(b"content-length", b"0")
        length = int(given) if given.isdigit() and len(given) < 20 else 0
        settings = self._server.settings
        most = settings.webhook_body_limit if route.raw_body else settings.body_limit
        if length > most:
            raise _too_large(most)
        parts: list[bytes] = []
        self.is_reading = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "gone", "the request was not sent to its end")
            part = message.get("body", b"")
            if part:
                self._bodies.enter(len(part))
                self._held += len(part)
                parts.append(part)
            if self._held > most:
                raise _too_large(most)
            if not message.get("more_body"):
                break
        self.is_reading = False
        if route.raw_body:
            return b"".join(parts)
        if route.decode_body is None:
            return None  # what is sent along with a GET or DELETE is nobody's concern
        content = b"".join(parts)
        if not content and route.body_optional:
            return route.decode_body(b"{}")
        kind = self._headers.get(b"content-type", b"")
        if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
            raise Problem(
                415, "unsupported_media_type", "the body is not said to be JSON", "send Content-Type: application/json"
            )
        if not content:
            raise Problem(400, "bad_json", "the body is empty", "send JSON: GET /openapi.json has the schema")
        try:
            return route.decode_body(content)
        except RecursionError:
            raise Problem(400, "bad_json", "the JSON is nested too deeply", "send flatter data") from None
        except msgspec.ValidationError as error:
            raise Problem(
                422, "invalid_body", str(error), _fields(error, route.body) + "GET /openapi.json has the schema"
            ) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise Problem(400, "bad_json", f"the body cannot be read: {error}", "send JSON in UTF-8") from None

    def close(self) -> None:
        if self._call is not None:
            self._call.close()
        if self._in_work is not None:
            self._in_work.leave()
        self._bodies.leave(self._held)
        if self._held > LARGE:
            self._server.memory.trim_soon()


def _too_large(most: int) -> Problem:
    return Problem(413, "body_too_large", f"the body is larger than {most} bytes", "send smaller batches")


def _describe(span: tracing.Span, work: _Work, scope: MutableMapping[str, Any], status: int) -> None:
    about: dict[str, Any] = {"http.response.status_code": status}
    if "channel" not in work.path or tracing.exports_keys():
        about["url.path"] = scope["path"]
    if work.route is not None:
        span.rename(f"{scope['method']} {work.route.path}")
        about["http.route"] = work.route.path
    if "stream" in work.path:
        about |= {"messaging.system": "headgate", "messaging.destination.name": work.path["stream"]}
    if "consumer" in work.path:
        about["messaging.consumer.group.name"] = work.path["consumer"]
    span.tell(about)
    if status >= 500:
        span.fail(str(status))


def _query(route: Route, query_string: bytes) -> Any:
    if route.query is None:
        if query_string:
            raise Problem(422, "invalid_query", "this path takes no query parameters", "leave them out")
        return None
    given: dict[str, str] = {}
    try:
        for pair in query_string.split(b"&"):
            if pair:
                name, _, value = pair.replace(b"+", b" ").partition(b"=")
                text = unquote_to_bytes(name).decode()
                if text in given:
                    raise Problem(422, "invalid_query", f"{text[:50]} is given twice", "give it once")
                given[text] = unquote_to_bytes(value).decode()
        return msgspec.convert(given, route.query, strict=False)
    except UnicodeDecodeError:
        raise Problem(400, "bad_query", "the query is not UTF-8", "encode it as UTF-8, then in percents") from None
    except msgspec.ValidationError as error:
        hint = _fields(error, route.query) + "GET /openapi.json has the parameters"
        raise Problem(422, "invalid_query", str(error), hint) from None


def _fields(error: msgspec.ValidationError, shape: Any) -> str:
    """What there is instead of a field that there is not, or that is missing; of a whole body or query alone."""
    fields = getattr(shape, "__struct_encode_fields__", ())
    if not fields or " field `" not in str(error) or " - at `$" in str(error):
        return ""
    return f"there are {', '.join(fields)}; "


def _problem(p: Problem) -> Answer:
    headers: list[tuple[bytes, bytes]] = []
    if p.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(p.retry_after))).encode()))
    if p.status == 401 and p.code == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    if p.status == 405 and p.hint:
        headers.append((b"allow", p.hint.removeprefix("it takes ").encode()))
    error = {"code": p.code, "message": p.message, "hint": p.hint}
    try:
        body = _encode({"error": error})
    except ValueError:  # a name with half a surrogate pair in it
        body = _encode({"error": {**error, "message": p.message.encode("ascii", "replace").decode()}})
    return p.status, JSON, body, headers
