"""The SDK's own connections: a pool of them, for one process and one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ..database.drivers import Row
from ..database.forks import watch_connection, watch_pool, watched
from ..errors import ConnectionFailed, Error

_KEPT = 64 * 1024  # characters: a kept cursor keeps its last parameters and result, which must not be large


_READ_COMMITTED = "set default_transaction_isolation = 'read committed'"
_CLEAN = (
    "set session authorization default; reset all; unlisten *; select pg_catalog.pg_advisory_unlock_all(); "
    "discard temp; " + _READ_COMMITTED
)


class AsyncPooledConnection(AsyncConnection[Row]):
    """A connection that keeps a cursor between statements: making one costs as much as a small statement."""

    _kept: AsyncCursor[Row] | None = None
    settled: set[str] | None = None  # the ack_ids that the block of `transaction()` that has it has settled itself
    stale = 0  # how many of them were somebody else's by then

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        watch_connection(self)

    async def rows(self, query: str, params: Sequence[Any], *, prepare: bool | None, binary: bool) -> list[Row]:
        """Runs a statement and returns its rows."""
        cursor = self._kept or self.cursor()
        self._kept = None
        try:
            await cursor.execute(query, params, prepare=prepare, binary=binary)
        except BaseException as error:  # cancelled, or Ctrl-C: the statement may have come to its end all the same
            if not isinstance(error, Exception) and cursor.pgresult is not None and cursor.pgresult.nfields > 0:
                error._headgate_rows = await cursor.fetchall()  # type: ignore[attr-defined]
            raise
        # (not cursor.description, which is made anew each time and takes longer than all else here)
        has_result = cursor.pgresult is not None and cursor.pgresult.nfields > 0
        rows = await cursor.fetchall() if has_result else []
        if _are_short(params) and len(rows) <= 100 and (not rows or _are_short(rows[0])):
            self._kept = cursor
        return rows

    async def clean(self) -> None:
        """Undoes what a transaction of a user has left behind in the session. One that cannot be cleaned is closed."""
        try:
            await self.execute(_CLEAN)
        except psycopg.Error:  # what was to be done is committed
            await self.close()


class AsyncPool:
    """Connections to one database, made when they are needed. A forked child begins with none of its parent's."""

    def __init__(
        self,
        url: str,
        settings: dict[str, Any],
        *,
        size: int,
        timeout: float,
        prepare: Callable[[], Awaitable[None]],
        of: type[AsyncPooledConnection] = AsyncPooledConnection,
    ) -> None:
        self._url = url
        self._of = of
        self._prepare = prepare
        self._settings = settings
        self._size = size
        self._timeout = timeout
        self._open: AsyncConnectionPool[AsyncPooledConnection] | None = None
        self._opening = asyncio.Lock()
        # async-only: begin
        self._loop = asyncio.get_running_loop()
        # async-only: end
        watch_pool(self)

    async def ready(self) -> AsyncConnectionPool[AsyncPooledConnection]:
        """The driver's pool, open."""
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    self._open = await self._new()
        # async-only: begin
        if self._loop is not asyncio.get_running_loop():
            raise Error(
                "this AsyncHeadgate was opened in another event loop",
                hint="connect in the event loop that uses it: asyncio.run() begins a new one each time",
            )
        # async-only: end
        return self._open

    # async-only: begin
    @property
    def now(self) -> AsyncConnectionPool[AsyncPooledConnection]:
        """The driver's pool, unless this process was forked and has not made its own yet."""
        if self._open is None:
            raise Error("this process was forked and has no connections of its own yet", hint="await any call first")
        return self._open

    # async-only: end
    async def run(self, query: str, params: Sequence[Any], *, prepare: bool | None, binary: bool) -> list[Row]:
        """Runs one statement and returns its rows."""
        pool = await self.ready()
        # Autocommit: there is nothing to commit at the end, so the pool's context manager, which does, is not used.
        try:
            own = await pool.getconn()
        except PoolTimeout as error:
            raise self._explained() from error
        try:
            return await own.rows(query, params, prepare=prepare, binary=binary)
        except psycopg.errors.ReadOnlySqlTransaction:  # after a failover the next connection may find the primary
            await own.close()
            raise
        finally:
            await pool.putconn(own)

    async def replace(self) -> None:
        """Gives all connections up: who waits for one fails, and nobody waits for the pool's next try."""
        before, self._open = self._open, await self._new()
        if before is not None:
            await before.close(timeout=0)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - the driver's own
        """Gives the connections back. Waits so long for those that do not let themselves be closed."""
        before, self._open = self._open, None
        if before is None:
            return
        # async-only: begin
        if self._loop is not asyncio.get_running_loop():  # what would close it went with that event loop
            _abandon(before)
            return
        # async-only: end
        await before.close(timeout)

    async def _new(self) -> AsyncConnectionPool[AsyncPooledConnection]:
        # async-only: begin
        self._loop = asyncio.get_running_loop()
        # async-only: end
        await self._prepare()
        pool = AsyncConnectionPool(
            self._url,
            connection_class=self._of,
            kwargs=self._settings,
            # (Not behind a pooler, where it would stay with the connection for others.)
            configure=_at_read_committed if self._settings["prepare_threshold"] else None,
            min_size=0,
            max_size=self._size,
            open=False,
            timeout=self._timeout,
            name="headgate",
            check=None,
        )
        await pool.open()
        return pool

    def _forget(self) -> None:
        """In a forked child: what is open is the parent's, and a thread of it may have had the lock."""
        if self._open is not None:
            _abandon(self._open)
        self._open, self._opening = None, asyncio.Lock()

    def _explained(self) -> ConnectionFailed:
        """Why no connection was to be had."""
        in_use = sum(getattr(conn, "_pool", None) is self._open for conn in watched())
        if in_use >= self._size:
            return ConnectionFailed(
                f"all {self._size} connections of this client were in use for {self._timeout:g} s",
                hint="give it more (max_connections=…), or hold fewer at once: each transaction() holds one, and so "
                "does each call under way; PostgreSQL is not the reason",
            )
        return ConnectionFailed(
            f"no connection to the database within {self._timeout:g} s",
            hint="is PostgreSQL running and below its max_connections? the call can be repeated",
        )


def _abandon(pool: AsyncConnectionPool[AsyncPooledConnection]) -> None:
    """Has the driver's pool do nothing at its end: the threads or tasks that it would tell are not there."""
    with suppress(AttributeError):
        pool._closed = True


async def _at_read_committed(conn: AsyncConnection[Any]) -> None:
    """Whatever the database's default is: workers at REPEATABLE READ would mostly stand in each other's way."""
    await conn.execute(_READ_COMMITTED)


def rows_of(error: BaseException) -> list[Row]:
    """What the statement answered that was interrupted by this error, if it came to its end all the same."""
    return getattr(error, "_headgate_rows", [])


def _are_short(values: Sequence[Any]) -> bool:
    return all(len(v) <= _KEPT for v in values if type(v) is str)
