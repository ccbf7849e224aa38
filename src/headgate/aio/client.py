"""A database with Headgate in it: connections, the schema, and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from .. import schema, statements
from ..connections import Row, literals, run_async
from ..encoding import interval, whole
from ..errors import (
    Conflict,
    ConnectionFailed,
    Error,
    InvalidArgument,
    NotAllowed,
    SchemaMissing,
    StreamNotFound,
    from_database,
    is_uprooted,
)
from ..types import Finding, LaneBy, Retain
from ..worker_options import WorkerOptions
from .consumer import AsyncConsumer
from .insights import AsyncInsights
from .message import AsyncMessage
from .pooled import AsyncPooledConnection
from .sources import AsyncSources
from .stream import AsyncStream

if TYPE_CHECKING:
    from ..embedded import EmbeddedServer
    from ..maintenance import AsyncMaintenance
    from ..worker import AsyncWorker


TRIES = 3  # of a statement whose stream is dropped, and perhaps made again, at this moment


class AsyncHeadgate:
    """A database with Headgate in it. Making one connects to nothing; `open` (or `headgate.connect_async`) does.

    Without a URL it starts or joins a private PostgreSQL in `./.headgate`, or in `directory`. `pooler=True` is for a
    transaction-mode pooler that does not know prepared statements.
    """

    # headgate.maintenance and headgate.worker set them: those layers stand above this one
    maintenance_type: ClassVar[type[AsyncMaintenance]]
    worker_type: ClassVar[type[AsyncWorker]]

    def __init__(
        self,
        url: str | None = None,
        *,
        directory: str | None = None,
        max_connections: int = 16,
        timeout: float = 30,
        pooler: bool = False,
    ) -> None:
        self._given_url = url
        self._directory = directory
        self._max_connections = max_connections
        self._timeout = timeout
        self._pooler = pooler
        self._server: EmbeddedServer | None = None
        self._pool: AsyncConnectionPool[AsyncPooledConnection] | None = None
        self.insights = AsyncInsights(self)
        self.sources = AsyncSources(self)

    @property
    def url(self) -> str:
        """The database's URL: the one given, or the embedded server's once it is open."""
        url = self._given_url or (self._server.url if self._server else None)
        if url is None:
            raise Error("the embedded PostgreSQL is not running", hint="call open() first, or use headgate.connect()")
        return url

    async def open(self, *, migrate: bool | None = None) -> AsyncHeadgate:
        """Connects, and checks that the server and its schema fit this code.

        `migrate=True` installs or upgrades the schema first. By default only an embedded server's schema is.
        """
        if self._given_url is None and self._server is None:
            from ..embedded import start_or_join

            # async-only: begin
            self._server = await asyncio.to_thread(start_or_join, self._directory)
            # async-only: end
            # sync-only: begin
            # self._server = start_or_join(self._directory)
            # sync-only: end
        try:
            await self._check_server()
            if migrate or (migrate is None and self._given_url is None):
                await self.migrate()
            await self._check_schema()
            self._pool = AsyncConnectionPool(
                self.url,
                connection_class=AsyncPooledConnection,
                kwargs=self._settings(),
                configure=None if self._pooler else _at_read_committed,
                min_size=0,
                max_size=self._max_connections,
                open=False,
                timeout=self._timeout,
                name="headgate",
                check=None,
            )
            await self._pool.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Gives the connections back, and leaves the embedded server if there is one."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._server is not None:
            server, self._server = self._server, None
            # async-only: begin
            await asyncio.to_thread(server.leave)
            # async-only: end
            # sync-only: begin
            # server.leave()
            # sync-only: end

    async def __aenter__(self) -> AsyncHeadgate:
        return self if self._pool is not None else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def migrate(self) -> int:
        """Installs or upgrades the schema; returns the migration it is at. Safe to run from many processes at once."""
        async with await self._connect() as conn:
            try:
                async with conn.transaction():
                    await conn.execute(schema.LOCK)
                    version, digest = await _installed(conn)
                    if version <= schema.newest_migration() and (version, digest) != (
                        schema.newest_migration(),
                        schema.digest(),
                    ):
                        await conn.execute(schema.install_sql(version).encode())
            except psycopg.Error as error:
                ours = from_database(error)
                if isinstance(ours, NotAllowed):
                    ours.hint = (
                        "migrate as the owner of the schema headgate, "
                        "or, the first time, as a role with CREATE on the database"
                    )
                raise ours or error from error
        return max(version, schema.newest_migration())

    async def stream(
        self,
        name: str,
        *,
        create: bool = False,
        exist_ok: bool = True,
        lanes: int | None = None,
        lane_by: LaneBy | None = None,
        retain: Retain | None = None,
        retain_up_to: float | timedelta | None = None,
        retain_at_least: float | timedelta | None = None,
        max_storage: int | None = None,
        one_message_per_key: bool | None = None,
        process_unmodified: bool | None = None,
        dedup_window: float | timedelta | None = None,
        max_message_bytes: int | None = None,
        segment_rows: int | None = None,
        segment_bytes: int | None = None,
        segment_age: float | timedelta | None = None,
        compact_every: float | timedelta | None = None,
    ) -> AsyncStream:
        """A stream by name. `create=True` makes it if it is missing; the other arguments are for a new stream.

        An existing one is left as it is: SettingsDiffer when a setting that is given is not its own. With
        `exist_ok=False` an existing one is an error. Settings that are left out have the defaults of docs/settings.md:
        16 lanes by hash, messages stay for ever, ids are remembered for 5 minutes.

        `lane_by` says what shares a lane: keys of the same hash, one key, or one channel. Messages stay for ever, or
        until every consumer has acked them (`retain`), no longer than `retain_up_to`; at `max_storage` bytes the oldest
        go, but none younger than `retain_at_least`: then sending fails. `one_message_per_key` keeps only the latest.
        """
        if create:
            params = (
                name,
                whole(lanes, "lanes"),
                lane_by,
                retain,
                interval(retain_up_to),
                interval(retain_at_least),
                whole(max_storage, "max_storage", 63),
                one_message_per_key,
                process_unmodified,
                interval(dedup_window),
                whole(max_message_bytes, "max_message_bytes"),
                whole(segment_rows, "segment_rows", 63),
                whole(segment_bytes, "segment_bytes", 63),
                interval(segment_age),
                interval(compact_every),
                exist_ok,
            )
            await self.run(statements.CREATE_STREAM, params)
        else:
            await self.run(statements.STREAM_SETTINGS, (name,))
        return AsyncStream(self, name)

    async def streams(self) -> list[str]:
        """The names of all streams."""
        return [s.name for s in await self.insights.streams()]

    async def maintain(self) -> list[tuple[str, str, int]]:
        """One bounded step of maintenance. Safe to run from many processes at once."""
        return [(task, subject, done) for task, subject, done in await self.run(statements.MAINTAIN, ())]

    def maintenance(self, interval: float = 1.0) -> AsyncMaintenance:
        """A service that maintains the database every `interval` seconds: `async with hg.maintenance(): …`.

        Workers do it too, where their role may, and `headgate up`. Any number may run at once.
        """
        return self.maintenance_type(self, interval)

    @overload
    def worker(
        self,
        consumers: Mapping[AsyncConsumer, float],
        handler: Callable[[AsyncMessage], Any] | Mapping[AsyncConsumer, Callable[[AsyncMessage], Any]],
        **options: Unpack[WorkerOptions],
    ) -> AsyncWorker: ...

    @overload
    def worker(
        self, consumers: Mapping[AsyncConsumer, float], handler: None = None, **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[[AsyncMessage], Any]], AsyncWorker]: ...

    def worker(
        self,
        consumers: Mapping[AsyncConsumer, float],
        handler: Callable[[AsyncMessage], Any] | Mapping[AsyncConsumer, Callable[[AsyncMessage], Any]] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> AsyncWorker | Callable[[Callable[[AsyncMessage], Any]], AsyncWorker]:
        """A worker of several consumers, by weight: `@hg.worker({urgent: 8, bulk: 1}, concurrency=8)`.

        They share its handlers. While all have messages, each gets its weight's share of the handlers' time; what uses
        less than its share goes first, and what the others leave anyone may have. One handler is for all, and
        `m.consumer` tells which it is; or pass a dict of consumers and handlers. The rest is as in `consumer.worker`.
        """

        def make(handler: Any) -> AsyncWorker:
            worker = self.worker_type(consumers, handler, **options)
            if worker.consumer.hg is not self:
                raise InvalidArgument(
                    f"{worker.consumer!r} is of another client", hint="get all consumers from the client of the worker"
                )
            return worker

        return make if handler is None else make(handler)

    async def doctor(self, patience: float | timedelta = 300) -> list[Finding]:
        """What is wrong with the database and what to do about it, the worst first; see `insights.doctor`."""
        return await self.insights.doctor(patience)

    async def run(self, query: str, params: Sequence[Any] = (), conn: Any = None, *, binary: bool = False) -> list[Row]:
        """Runs one statement, on a connection of our own or inside the transaction of `conn`.

        A statement without a result answers an empty list. `binary` results are read faster when there are many.
        """
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._run(query, params, conn, binary)
            except Exception as error:
                ours = error if isinstance(error, Error) else from_database(error)
                if is_uprooted(error):  # what the statement stood on was dropped under it, and perhaps made again
                    if conn is None and left:
                        continue
                    if conn is not None and isinstance(params[0] if params else None, str):
                        ours = await self._uprooted(params[0]) or ours
                if ours is None or ours is error:
                    raise
                raise ours from error
        raise AssertionError

    async def _uprooted(self, stream: str) -> Error | None:
        """What a user's transaction is told when its statement failed because a stream was dropped: None if it was not.

        The transaction cannot go on, so this asks on a connection of our own.
        """
        try:
            await self._run(statements.STREAM_SETTINGS, (stream,), None, False)
        except Exception as error:
            found = from_database(error)
            return found if isinstance(found, StreamNotFound) else None
        return Conflict(
            f'stream "{stream}" was dropped and made again while this transaction used it',
            hint="repeat the transaction",
        )

    async def _run(self, query: str, params: Sequence[Any], conn: Any, binary: bool) -> list[Row]:
        try:
            if conn is not None:
                return await run_async(conn, query, params)
            # Autocommit: there is nothing to commit at the end, so the pool's context manager, which does, is not used.
            own = await self.pool.getconn()
            try:
                return await own.rows(query, literals(params), prepare=None if self._pooler else True, binary=binary)
            finally:
                await self.pool.putconn(own)
        except PoolTimeout as error:
            raise ConnectionFailed(
                f"no connection to the database within {self._timeout:g} s",
                hint="is PostgreSQL running and below its max_connections? the call can be repeated",
            ) from error

    @property
    def pool(self) -> AsyncConnectionPool[AsyncPooledConnection]:
        """The connections; open."""
        if self._pool is None:
            raise Error("this Headgate is not open", hint="use headgate.connect(), or call open() first")
        return self._pool

    def _settings(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": None if self._pooler else 5, "application_name": "headgate"}

    async def _connect(self) -> AsyncConnection[tuple[Any, ...]]:
        try:
            timeout = max(2, int(self._timeout))  # libpq's least; 0 would mean to wait for ever
            return await AsyncConnection.connect(self.url, **self._settings(), connect_timeout=timeout)
        except psycopg.ProgrammingError:  # it quotes the part it cannot read, which may be the password
            raise InvalidArgument(
                "the database's URL cannot be read",
                hint="write postgresql://user:password@host:port/database, with %40 for an @ in the password and so on",
            ) from None
        except psycopg.Error as error:
            raise from_database(error) or error from error

    async def _check_server(self) -> None:
        async with await self._connect() as conn:
            if (error := schema.check_server(conn.info.server_version)) is not None:
                raise error

    async def _check_schema(self) -> None:
        async with await self._connect() as conn:
            if (error := schema.check(*await _installed(conn))) is not None:
                raise error


async def _at_read_committed(conn: AsyncConnection[Any]) -> None:
    """Whatever the database's default is: workers at REPEATABLE READ would mostly stand in each other's way.

    (Not behind a pooler, where it would stay with the connection for others.)
    """
    await conn.execute("set default_transaction_isolation = 'read committed'")


async def _installed(conn: AsyncConnection[tuple[Any, ...]]) -> tuple[int, str | None]:
    """The database's last migration (0: none) and the digest of its functions."""
    try:
        async with conn.transaction():
            row = await (await conn.execute(schema.INSTALLED)).fetchone()
    except psycopg.Error as error:
        ours = from_database(error)
        if isinstance(ours, SchemaMissing):
            return 0, None
        if isinstance(ours, NotAllowed):
            raise NotAllowed(
                "this database role may not use Headgate",
                hint="grant it headgate_owner, headgate_producer, headgate_consumer or headgate_monitor",
            ) from error
        raise ours or error from error
    return (row[0] or 0, row[1]) if row else (0, None)
