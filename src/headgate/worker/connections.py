"""The connections of a worker's own: opened again when the database comes back, and cut when it does not answer.

A call that gets no answer cannot be cancelled in good time, because the driver then waits for the answer to that. So
its connection is cut: the socket is shut down, and who waits for it fails at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

import psycopg

from ..aio import AsyncHeadgate
from ..aio.pooled import AsyncPooledConnection
from ..database import statements
from ..errors import Conflict, ConnectionFailed, error_text
from ..maintenance import TRANSIENT_ERRORS

log = logging.getLogger("headgate.worker")

SHORTEST_RETRY, LONGEST_RETRY = 0.1, 5.0
RETRY_WHEN_STOPPING = 0.5
CONFLICT_PAUSE = 0.001
PATIENCE = 5.0  # seconds without an answer, after which that is said
LONGEST_CALL = 60.0  # seconds without an answer, after which the connection is given up: the network may have lost it
CLOSE_SECONDS = 0.2  # seconds to close connections in an orderly way
# Seconds of one attempt to connect again: begun while the network was gone, it may wait for an answer that never comes.
LONGEST_RECONNECT = 10.0
HTTP_PATIENCE = 1.5  # seconds for which a call over HTTP is repeated: it holds up a stop


class OwnHeadgate(AsyncHeadgate):
    """A client that knows how long its calls have been waiting, and can cut its connections."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._made: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()
        self._connection_type = self._own_connections()
        self._since: dict[object, float] = {}  # the calls that wait for an answer

    def waits(self) -> float:
        """Seconds that the oldest call has been waiting."""
        if self.http is not None:
            return self.http.waits()
        return monotonic() - min(self._since.values()) if self._since else 0.0

    def cut(self) -> None:
        """Ends every connection at once, whatever waits for it."""
        if self.http is not None:
            self.http.cut()
        for conn in list(self._made):
            with suppress(OSError, psycopg.Error):
                wire = socket.socket(fileno=conn.pgconn.socket)
                try:
                    wire.shutdown(socket.SHUT_RDWR)
                finally:
                    wire.detach()

    async def close(self) -> None:
        """Gives the connections back; those that do not let themselves be closed soon are cut."""
        closing = asyncio.ensure_future(super().close())
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        if not closing.done():
            self.cut()
            closing.cancel()
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)

    def _own_connections(self) -> type[AsyncPooledConnection]:
        made = self._made

        class Own(AsyncPooledConnection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                made.add(self)

        return Own

    async def _connect(self, *args: Any) -> Any:
        conn = await super()._connect(*args)
        self._made.add(conn)
        return conn

    async def _run(self, query: str, params: Sequence[Any], conn: Any, binary: bool) -> Any:
        if query is statements.MAINTAIN:  # may take its time
            return await super()._run(query, params, conn, binary)
        call = object()
        self._since[call] = monotonic()
        try:
            return await super()._run(query, params, conn, binary)
        finally:
            del self._since[call]


class Database:
    """A worker's way to the database, from its start to its end."""

    def __init__(
        self,
        hg: Any,
        connections: int,
        prepare: Callable[[OwnHeadgate], Awaitable[None]],
        lost: Callable[[], None],
        extra: dict[str, Any],
    ) -> None:
        self._hg = hg  # the user's client
        self._connections = connections
        self._prepare = prepare  # called with connections before they are used
        self._lost = lost  # called when there are none any more
        self._extra = extra  # of log records
        self.own: OwnHeadgate | None = None  # None while the database is away
        self._opening: OwnHeadgate | None = None
        self._recovering = asyncio.Lock()
        self._stop = asyncio.Event()
        self._retry_after = SHORTEST_RETRY
        self._away = self._silent = False
        self.reconnects = 0

    async def open(self, longest: float = float("inf")) -> None:
        """Connects, within the time that the user's client has for it, or `longest` where that is less."""
        hg = self._hg
        timeout = min(hg._timeout, longest)
        own = OwnHeadgate(
            hg.url, max_connections=self._connections, timeout=timeout, pooler=hg._pooler, token=hg._token
        )
        if own.http is not None:
            own.http.patience = HTTP_PATIENCE  # what takes longer is the engine's to wait for
        self._opening = own
        try:
            await own.open(migrate=False)
            await self._prepare(own)
        except BaseException:
            await own.close()
            raise
        finally:
            self._opening = None
        self.own = own

    async def close(self) -> None:
        """Gives the connections up."""
        own, self.own = self.own, None
        self._lost()
        if own is not None:
            await own.close()

    def cut(self) -> None:
        """Whatever waits for the database waits no more."""
        for own in (self.own, self._opening):
            if own is not None:
                own.cut()

    def is_silent(self) -> bool:
        """Whether a call, or a connection, has been waited for longer than an answer takes."""
        return self._opening is not None or (self.own is not None and self.own.waits() > CLOSE_SECONDS / 2)

    def stop_waiting(self) -> None:
        """The worker stops: no pause is long any more."""
        self._stop.set()

    def look(self, patience: float | None = None) -> None:
        """Says so when calls get no answer, and gives such connections up in the end. To be called now and then."""
        waited = 0.0 if self.own is None else self.own.waits()
        if waited > (PATIENCE if patience is None else patience):
            if not self._silent:
                log.warning("the database does not answer", extra={**self._extra, "seconds": round(waited, 1)})
            self._silent = True
            if waited > LONGEST_CALL:
                self.cut()
        elif self._silent and self.own is not None:
            self._silent = False
            log.info("the database answers again", extra=self._extra)

    async def recover(self, broken: Any, error: BaseException) -> None:
        """After a failure that passes, of connections (None: there were none): waits, and tries once to connect."""
        if isinstance(error, Conflict):
            await asyncio.sleep(CONFLICT_PAUSE)
            return
        async with self._recovering:
            if self.own is not broken:
                return  # the other task has been here
            if not self._away:
                self._away = True
                log.warning("the database is away", extra={**self._extra, "error": error_text(error)})
            with suppress(Exception):
                await self.close()
            pause = self._retry_after
            if self._stop.is_set():
                await asyncio.sleep(min(pause, RETRY_WHEN_STOPPING))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)
            try:
                await self.open(LONGEST_RECONNECT)
            except TRANSIENT_ERRORS:
                self._retry_after = min(pause * 2, LONGEST_RETRY)
            else:
                self._retry_after, self._away = SHORTEST_RETRY, False
                self.reconnects += 1
                log.info("the database is back", extra=self._extra)


def require_connection(link: Any) -> Any:
    """A consumer on these connections; the failure that there are none, when there are none."""
    if link is None:
        raise ConnectionFailed("the database is away")
    return link
