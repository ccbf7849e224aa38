"""The table of routes. `openapi` describes it and `app` runs it, so the two cannot differ."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from .errors import Problem

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
    answer: Any  # the type of "data"; a str is the content type of an answer that is not JSON
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
    page: Callable[[Any], bytes] | None = None  # the answer as browsers are shown it

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


class Routes:
    """Routes by path; a group of them is collected with `route` and joined with `include`."""

    def __init__(self) -> None:
        self.all: list[Route] = []
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
            for route in group.all:
                self._add(route)
        return self

    def _add(self, route: Route) -> None:
        self.all.append(route)
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
