# Generated from src/headgate/aio/pooled.py by tools/generate_sync.py: do not edit, run `make sync`.
"""The SDK's own connections: a pool of them, for one process and one event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import Connection, Cursor
from psycopg_pool import ConnectionPool, PoolTimeout

from ..database.drivers import Row
from ..database.forks import watch_connection, watch_pool, watched
from ..errors import ConnectionFailed

_KEPT = 64 * 1024  # characters: a kept cursor keeps its last parameters and result, which must not be large


_READ_COMMITTED = "set default_transaction_isolation = 'read committed'"
_CLEAN = (
    "set session authorization default; reset all; unlisten *; select pg_catalog.pg_advisory_unlock_all(); "
    "discard temp; " + _READ_COMMITTED
)


class PooledConnection(Connection[Row]):
    """A connection that keeps a cursor between statements: making one costs as much as a small statement."""

    _kept: Cursor[Row] | None = None
    settled: set[str] | None = None  # the ack_ids that the block of `transaction()` that has it has settled itself
    stale = 0  # how many of them were somebody else's by then

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        watch_connection(self)

    def rows(self, query: str, params: Sequence[Any], *, prepare: bool | None, binary: bool) -> list[Row]:
        """Runs a statement and returns its rows."""
        cursor = self._kept or self.cursor()
        self._kept = None
        try:
            cursor.execute(query, params, prepare=prepare, binary=binary)
        except BaseException as error:  # cancelled, or Ctrl-C: the statement may have come to its end all the same
            if not isinstance(error, Exception) and cursor.pgresult is not None and cursor.pgresult.nfields > 0:
                error._headgate_rows = cursor.fetchall()  # type: ignore[attr-defined]
            raise
        # (not cursor.description, which is made anew each time and takes longer than all else here)
        has_result = cursor.pgresult is not None and cursor.pgresult.nfields > 0
        rows = cursor.fetchall() if has_result else []
        if _are_short(params) and len(rows) <= 100 and (not rows or _are_short(rows[0])):
            self._kept = cursor
        return rows

    def clean(self) -> None:
        """Undoes what a transaction of a user has left behind in the session. One that cannot be cleaned is closed."""
        try:
            self.execute(_CLEAN)
        except psycopg.Error:  # what was to be done is committed
            self.close()


class Pool:
    """Connections to one database, made when they are needed. A forked child begins with none of its parent's."""

    def __init__(
        self,
        url: str,
        settings: dict[str, Any],
        *,
        size: int,
        timeout: float,
        prepare: Callable[[], None],
        of: type[PooledConnection] = PooledConnection,
    ) -> None:
        self._url = url
        self._of = of
        self._prepare = prepare
        self._settings = settings
        self._size = size
        self._timeout = timeout
        self._open: ConnectionPool[PooledConnection] | None = None
        self._opening = threading.Lock()
        watch_pool(self)

    def ready(self) -> ConnectionPool[PooledConnection]:
        """The driver's pool, open."""
        if self._open is None:
            with self._opening:
                if self._open is None:
                    self._open = self._new()
        return self._open

    def run(self, query: str, params: Sequence[Any], *, prepare: bool | None, binary: bool) -> list[Row]:
        """Runs one statement and returns its rows."""
        pool = self.ready()
        # Autocommit: there is nothing to commit at the end, so the pool's context manager, which does, is not used.
        try:
            own = pool.getconn()
        except PoolTimeout as error:
            raise self._explained() from error
        try:
            return own.rows(query, params, prepare=prepare, binary=binary)
        except psycopg.errors.ReadOnlySqlTransaction:  # after a failover the next connection may find the primary
            own.close()
            raise
        finally:
            pool.putconn(own)

    def replace(self) -> None:
        """Gives all connections up: who waits for one fails, and nobody waits for the pool's next try."""
        before, self._open = self._open, self._new()
        if before is not None:
            before.close(timeout=0)

    def close(self, timeout: float) -> None:
        """Gives the connections back. Waits so long for those that do not let themselves be closed."""
        before, self._open = self._open, None
        if before is None:
            return
        before.close(timeout)

    def _new(self) -> ConnectionPool[PooledConnection]:
        self._prepare()
        pool = ConnectionPool(
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
        pool.open()
        return pool

    def _forget(self) -> None:
        """In a forked child: what is open is the parent's, and a thread of it may have had the lock."""
        if self._open is not None:
            _abandon(self._open)
        self._open, self._opening = None, threading.Lock()

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


def _abandon(pool: ConnectionPool[PooledConnection]) -> None:
    """Has the driver's pool do nothing at its end: the threads or tasks that it would tell are not there."""
    with suppress(AttributeError):
        pool._closed = True


def _at_read_committed(conn: Connection[Any]) -> None:
    """Whatever the database's default is: workers at REPEATABLE READ would mostly stand in each other's way."""
    conn.execute(_READ_COMMITTED)


def rows_of(error: BaseException) -> list[Row]:
    """What the statement answered that was interrupted by this error, if it came to its end all the same."""
    return getattr(error, "_headgate_rows", [])


def _are_short(values: Sequence[Any]) -> bool:
    return all(len(v) <= _KEPT for v in values if type(v) is str)
