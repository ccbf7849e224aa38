"""One request on its way through a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ... import tracing
from ..operate.auth import Caller
from ..server import Server
from .deadlines import Deadline
from .routing import Route


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
