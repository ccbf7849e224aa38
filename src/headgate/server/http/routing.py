"""The table of routes, and a request on its way through a handler.

`openapi` describes the table and `app` runs it, so the two cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from ... import tracing
from .errors import Problem
from .limits import Deadline

if TYPE_CHECKING:
    from ..operate.auth import Caller
    from ..server import Server

Scope = Literal["admin", "produce", "consume", "monitor", "any"]  # any: every token for the stream
MOST_MATCHED = 1000
Handler = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    scope: Scope | None  # None: no token is needed
    response: Any  # the type of "data"; a str is the content type of an answer that is not JSON
    body: Any = None
    body_optional: bool = False
    query: type[msgspec.Struct] | None = None
    status: int = 200
    has_next: bool = False  # beside "data" there may be "next": where to go on
    next_type: str = "integer"
    patience: float | None = None  # seconds to check the token; then one that was valid lately is taken
    everywhere: bool = False  # not for tokens that are bound to some streams
    raw_body: bool = False  # the body is taken as it is, whatever it is, from anybody: the handler checks who sent it
    decode_body: Callable[[bytes], Any] | None = None
    page: Callable[[], bytes] | None = None  # what browsers are shown instead
    is_hidden: bool = False  # of the console's own: no part of the API

    @property
    def name(self) -> str:
        """The handler's name: what OpenAPI calls the operation."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """What the handler's docstring says first."""
        return (self.handler.__doc__ or "").strip().split("\n")[0]

    @cached_property
    def is_administrative(self) -> bool:
        """Whether calls of it are noted."""
        return self.scope == "admin" and self.method != "GET"

    @cached_property
    def needs_database(self) -> bool:
        """Whether there is nothing to be said without it. (What is counted is counted all the same.)"""
        return self.path != "/metrics" and (self.scope is not None or self.raw_body or self.path == "/readyz")

    @cached_property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class Call:
    """A request whose caller, path, query and body have been checked."""

    __slots__ = (
        "_gone", "_receive", "body", "caller", "has_hung_up", "headers", "limit", "next", "noted", "path", "query",
        "route", "sent", "server", "trace", "waited",
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        route: Route,
        caller: Caller,
        path: dict[str, str],
        query: Any,
        body: Any,
        receive: Callable[[], Awaitable[Any]],
        headers: dict[bytes, bytes],
    ) -> None:
        self.server = server
        self.route = route
        self.caller = caller
        self.path = path
        self.query = query
        self.body = body
        self.headers = headers
        self.trace: tracing.Carried | None = None  # the headers that messages without a trace of their own get
        self.limit: Deadline | None = None  # of the work on it
        self.next: int | str | None = None  # where a caller goes on who wants more than was looked at
        self.noted: dict[str, Any] = {}  # for the audit log, beside what was asked for
        self.sent: list[tuple[bytes, bytes]] = []  # headers of the answer, beside the usual ones
        self.waited = 0.0  # seconds spent waiting for messages
        self._receive = receive
        self.has_hung_up: Callable[[], bool] | None = None  # asked of the connection, if that knows
        self._gone: asyncio.Task[Any] | None = None

    @property
    def stream(self) -> str:
        """The stream of the path."""
        return self.path["stream"]

    @property
    def consumer(self) -> str:
        """The consumer of the path."""
        return self.path["consumer"]

    async def check_again(self) -> None:
        """Whether the caller may still do this: while it waited, its token may have ended or been taken away."""
        if self.server.settings.auth and self.route.scope is not None:
            self.caller = await self.server.tokens.caller(self.headers.get(b"authorization"))
            self.caller.check(self.route.scope, self.path.get("stream"), self.route.everywhere)

    @property
    def is_gone(self) -> bool:
        """Whether the caller has closed the connection, as far as is known."""
        if self.has_hung_up is not None and self.has_hung_up():
            return True
        return self._gone is not None and self._gone.done()

    @property
    def gone(self) -> asyncio.Task[Any]:
        """Done when the caller has closed the connection."""
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._until_gone())
        return self._gone

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def close(self) -> None:
        """Looks no longer whether the caller has gone."""
        if self._gone is not None:
            self._gone.cancel()


class Routes:
    """Routes by path; a group of them is collected with `route` and joined with `include`."""

    def __init__(self) -> None:
        self.all: list[Route] = []
        self.hidden: list[Route] = []
        self._tree: dict[str, Any] = {}
        self._matched: dict[tuple[str, bytes], tuple[Route, dict[str, str]]] = {}  # short paths that were asked for

    def route(self, method: str, path: str, **about: Any) -> Callable[[Handler], Handler]:
        """Adds the decorated handler."""

        def add(handler: Handler) -> Handler:
            body = about.get("body")
            decode = msgspec.json.Decoder(body).decode if body is not None else None
            self._add(Route(method, path, handler, decode_body=decode, **about))
            return handler

        return add

    def include(self, others: Iterable[Routes]) -> Routes:
        """Adds the routes of others."""
        for group in others:
            for route in (*group.all, *group.hidden):
                self._add(route)
        return self

    def _add(self, route: Route) -> None:
        (self.hidden if route.is_hidden else self.all).append(route)
        node = self._tree
        for part in filter(None, route.path.split("/")):
            node = node.setdefault("{}" if part.startswith("{") else part, {})
        node.setdefault("", {})[route.method] = route

    def match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route of a request and the values in its path, or 404 / 405."""
        if (known := self._matched.get((method, raw_path))) is not None:
            return known
        found = self._match(method, raw_path)
        if len(raw_path) <= 200:
            if len(self._matched) >= MOST_MATCHED:
                self._matched.clear()
            self._matched[method, raw_path] = found
        return found

    def _match(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        node = self._tree
        values: list[bytes] = []
        for part in raw_path[1:].split(b"/") if raw_path != b"/" else ():
            text = part.decode("latin-1")
            found = node.get(text) if text else None
            if found is None:
                found = node.get("{}") if text else None
                if found is None:
                    raise Problem(
                        404, "not_found", "there is nothing at this path", "GET /openapi.json lists the paths"
                    )
                values.append(part)
            node = found
        methods = node.get("")
        if not methods:
            raise Problem(404, "not_found", "there is nothing at this path", "GET /openapi.json lists the paths")
        route = methods.get(method)
        if route is None:
            raise Problem(
                405, "method_not_allowed", f"this path does not take {method[:20]}", "it takes " + ", ".join(methods)
            )
        try:
            texts = [unquote_to_bytes(v).decode("utf-8") for v in values]
        except UnicodeDecodeError:
            raise Problem(400, "bad_path", "the path is not UTF-8", "encode it as UTF-8, then in percents") from None
        return route, dict(zip(route.parameters, texts, strict=True))
