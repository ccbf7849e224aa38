# Generated from src/headgate/aio/client.py by tools/generate_sync.py: do not edit, run `make sync`.
"""A database with Headgate in it: connections, the schema, and streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool

from ..database import schema, statements
from ..database.drivers import Row, database_name, literals, run_sync
from ..database.encoding import dump_json, json_encoder
from ..database.parameters import as_settings
from ..errors import (
    Conflict,
    ConnectionFailed,
    ConsumerNotFound,
    Error,
    InvalidArgument,
    NotAllowed,
    NotOverHttp,
    StreamNotFound,
    from_database,
    is_uprooted,
)
from ..settings import STREAM, StreamOptions
from ..types import Finding
from .consumer import Consumer
from .insights import Insights
from .message import Message
from .migrating import WAIT, in_the_way, installed, migrate
from .pooled import Pool, PooledConnection
from .sources import Sources
from .stream import Stream
from .suggesting import suggest

if TYPE_CHECKING:
    from ..maintenance import Maintenance
    from ..postgres.embedded import EmbeddedServer
    from ..worker.lifecycle import Worker
    from ..worker.options import WorkerOptions
    from .transport import Transport


CLOSING = 0.2  # seconds for what the pool has under way, such as connecting to a database that does not answer
TRIES = 3  # of a statement whose stream is dropped, and perhaps made again, at this moment


class Headgate:
    """A database with Headgate in it. Making one connects to nothing; `open` (or `headgate.connect_async`) does.

    Without a URL it starts or joins a private PostgreSQL in `./.headgate`, or in `directory`. `pooler=True` is for a
    transaction-mode pooler that does not know prepared statements. `encoder` turns objects in data that JSON has no
    form for into some that it has, or raises TypeError: see "Data" in docs/guides/python.md. With an http or https URL
    it calls a server, with `token` or that of $HEADGATE_TOKEN: for services that may not reach the database. `conn=`,
    `transaction()`, `run()` and what looks after the database are NotOverHttp there.
    """

    # headgate.maintenance and headgate.worker set them when they are first used: those layers stand above this one
    maintenance_type: ClassVar[type[Maintenance]]
    worker_type: ClassVar[type[Worker]]
    _connection_type = PooledConnection

    def __init__(
        self,
        url: str | None = None,
        *,
        directory: str | None = None,
        max_connections: int = 16,
        timeout: float = 30,
        pooler: bool = False,
        token: str | None = None,
        encoder: Callable[[Any], Any] | None = None,
    ) -> None:
        self._dump = dump_json if encoder is None else json_encoder(encoder)
        self.http: Transport | None = None  # the way there, where it is not a connection to the database
        if url is not None and url.lower().startswith(("http://", "https://")):
            from .transport import Transport

            self.http = Transport(url, token, max_connections=max_connections, timeout=timeout)
        elif token is not None:
            raise InvalidArgument("a token is for an HTTP server", hint="give the server's URL: http://host:7376")
        self._token = token
        self._given_url = url
        self._directory = directory
        self._max_connections = max_connections
        self._timeout = timeout
        self._pooler = pooler
        self._server: EmbeddedServer | None = None
        self._pool: Pool | None = None
        self.insights = Insights(self)
        self.sources = Sources(self)

    def __repr__(self) -> str:
        if self.http is not None:
            to = str(self.http)
        elif self._given_url is not None:
            to = database_name(self._given_url)
        elif self._server is not None:
            to = f"the embedded PostgreSQL in {self._server.directory}"
        else:
            to = "an embedded PostgreSQL"
        return f"<{type(self).__name__}: {to}{'' if self.is_open else ', not open'}>"

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "a client cannot be sent to another process: its connections stay in this one",
            hint="connect in the other process, with the same URL",
        )

    @property
    def url(self) -> str:
        """The database's URL (or the server's): the one given, or the embedded server's once it is open."""
        url = self._given_url or (self._server.url if self._server else None)
        if url is None:
            raise Error("the embedded PostgreSQL is not running", hint="call open() first, or use headgate.connect()")
        return url

    def open(
        self, *, migrate: bool | None = None, wait: float = WAIT, tell: Callable[[str], None] | None = None
    ) -> Headgate:
        """Connects, and checks that the server and its schema fit this code.

        `migrate=True` installs or upgrades the schema first. By default only an embedded server's schema is. `wait` and
        `tell` are those of `migrate`.
        """
        if self.http is not None:
            if migrate:
                raise _needs_database("the schema is migrated")
            self.http.open()
            return self
        if self._given_url is None and self._server is None:
            self._server = self._start_or_join(self._directory)
        try:
            self._check_server()
            if migrate or (migrate is None and self._given_url is None):
                self.migrate(wait=wait, tell=tell)
            self._check_schema()
            self._pool = Pool(
                self.url,
                self._settings(),
                size=self._max_connections,
                timeout=self._timeout,
                prepare=self._rejoin,
                of=self._connection_type,
            )
            self._pool.ready()
        except BaseException:
            self.close()
            raise
        return self

    def _start_or_join(self, directory: Path | str | None) -> EmbeddedServer:
        from ..postgres.embedded import start_or_join

        return start_or_join(directory)

    def _rejoin(self) -> None:
        """In a forked child: uses the embedded server on its own account, so that it does not end with the parent."""
        if self._server is not None and not self._server.is_ours:
            self._server = self._start_or_join(self._server.directory)

    def _reconnect(self) -> None:
        """Gives all connections up: who waits for one fails, and nobody waits for the pool's next try."""
        self._own_pool.replace()

    def _probe(self, seconds: int) -> None:
        """Raises what keeps us from connecting."""
        with self._connect(seconds):
            pass

    def close(self) -> None:
        """Gives the connections back, and leaves the embedded server if there is one."""
        if self.http is not None:
            self.http.close()
        if self._pool is not None:
            self._pool.close(timeout=CLOSING)
            self._pool = None
        if self._server is not None:
            server, self._server = self._server, None
            server.leave()

    def __enter__(self) -> Headgate:
        return self if self.is_open else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def migrate(self, *, wait: float = WAIT, tell: Callable[[str], None] | None = None) -> int:
        """Installs or upgrades the schema; returns the migration it is at. Safe to run from many processes at once.

        While a transaction is in its way it waits, up to `wait` seconds, holding nobody else up; `tell` is told who it
        is (by default the log `headgate.migrate`). Conflict after that. A newer schema is left as it is.
        """
        with self._connect() as conn:
            return migrate(conn, wait, tell)

    def in_the_way(self) -> list[str]:
        """Who has a transaction open that `migrate` would have to wait for, if it has to alter tables."""
        with self._connect() as conn:
            return in_the_way(conn)

    def stream(
        self,
        name: str,
        *,
        create: bool = False,
        exist_ok: bool = True,
        **settings: Unpack[StreamOptions],
    ) -> Stream:
        """A stream by name. `create=True` makes it if it is missing; the settings are for a new stream.

        An existing one is left as it is: SettingsDiffer when a setting that is given is not its own. With
        `exist_ok=False` an existing one is an error. Settings that are left out have the defaults of docs/settings.md:
        16 lanes by hash, messages stay for ever, ids are remembered for 5 minutes.

        `lane_by` says what shares a lane: keys of the same hash, one key, or one channel. Messages stay for ever, or
        until every consumer has acked them (`retain`), no longer than `retain_up_to`; at `max_storage` bytes the oldest
        go, but none younger than `retain_at_least`: then sending fails. `one_message_per_key` keeps only the latest.
        """
        if create:
            params = (name, *as_settings(STREAM, settings), exist_ok)
            self.run(statements.CREATE_STREAM, params)
        else:
            self.run(statements.STREAM_SETTINGS, (name,))
        return Stream(self, name)

    def streams(self) -> list[str]:
        """The names of all streams."""
        return [s.name for s in self.insights.streams()]

    def maintain(self) -> list[tuple[str, str, int]]:
        """One bounded step of maintenance. Safe to run from many processes at once."""
        return [(task, subject, done) for task, subject, done in self.run(statements.MAINTAIN, ())]

    def maintenance(self, interval: float = 1.0) -> Maintenance:
        """A service that maintains the database every `interval` seconds: `with hg.maintenance(): …`.

        Workers do it too, where their role may, and `headgate up`. Any number may run at once.
        """
        if self.http is not None:
            raise _needs_database("maintenance is done")
        import_module("headgate.maintenance")
        return self.maintenance_type(self, interval)

    @overload
    def worker(
        self,
        consumers: Mapping[Consumer, float],
        handler: Callable[[Message], Any] | Mapping[Consumer, Callable[[Message], Any]],
        **options: Unpack[WorkerOptions],
    ) -> Worker: ...

    @overload
    def worker(
        self, consumers: Mapping[Consumer, float], handler: None = None, **options: Unpack[WorkerOptions]
    ) -> Callable[[Callable[[Message], Any]], Worker]: ...

    def worker(
        self,
        consumers: Mapping[Consumer, float],
        handler: Callable[[Message], Any] | Mapping[Consumer, Callable[[Message], Any]] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> Worker | Callable[[Callable[[Message], Any]], Worker]:
        """A worker of several consumers, by weight: `@hg.worker({urgent: 8, bulk: 1}, concurrency=8)`.

        They share its handlers. While all have messages, each gets its weight's share of the handlers' time; what uses
        less than its share goes first, and what the others leave anyone may have. One handler is for all, and
        `m.consumer` tells which it is; or pass a dict of consumers and handlers. The rest is as in `consumer.worker`.
        """

        import_module("headgate.worker.lifecycle")

        def make(handler: Any) -> Worker:
            worker = self.worker_type(consumers, handler, **options)
            if worker.consumer.hg is not self:
                raise InvalidArgument(
                    f"{worker.consumer!r} is of another client", hint="get all consumers from the client of the worker"
                )
            return worker

        return make if handler is None else make(handler)

    def doctor(self, patience: float | timedelta = 300) -> list[Finding]:
        """What is wrong with the database and what to do about it, the worst first; see `insights.doctor`."""
        return self.insights.doctor(patience)

    def run(self, query: str, params: Sequence[Any] = (), conn: Any = None, *, binary: bool = False) -> list[Row]:
        """Runs one statement, on a connection of our own or inside the transaction of `conn`.

        A statement without a result answers an empty list. `binary` results are read faster when there are many.
        """
        if self.http is not None:
            return self.http.run(query, params, conn)
        for left in range(TRIES - 1, -1, -1):
            try:
                return self._run(query, params, conn, binary)
            except Exception as error:
                ours = error if isinstance(error, Error) else from_database(error)
                if is_uprooted(error):  # what the statement stood on was dropped under it, and perhaps made again
                    if conn is None and left:
                        continue
                    if conn is not None and isinstance(params[0] if params else None, str):
                        ours = self._uprooted(params[0]) or ours
                if ours is None or ours is error:
                    raise
                if isinstance(ours, (StreamNotFound, ConsumerNotFound)) and conn is None:
                    suggest(self, ours, params)
                if isinstance(ours, NotAllowed):
                    ours.hint = schema.needed_role(query) or ours.hint
                raise ours from error
        raise AssertionError

    def _uprooted(self, stream: str) -> Error | None:
        """What a user's transaction is told when its statement failed because a stream was dropped: None if it was not.

        The transaction cannot go on, so this asks on a connection of our own.
        """
        try:
            self._run(statements.STREAM_SETTINGS, (stream,), None, False)
        except Exception as error:
            found = from_database(error)
            return found if isinstance(found, StreamNotFound) else None
        return Conflict(
            f'stream "{stream}" was dropped and made again while this transaction used it',
            hint="repeat the transaction",
        )

    def _run(self, query: str, params: Sequence[Any], conn: Any, binary: bool) -> list[Row]:
        if conn is not None:
            return run_sync(conn, query, params)
        prepare = None if self._pooler else True
        return self._own_pool.run(query, literals(params), prepare=prepare, binary=binary)

    @property
    def is_open(self) -> bool:
        """Whether it is open: calls can be made."""
        return self._pool is not None if self.http is None else self.http.is_open

    @property
    def pool(self) -> ConnectionPool[PooledConnection]:
        """The connections, open: `with hg.pool.connection() as conn` takes one for a transaction of your own."""
        return self._own_pool.ready()

    @property
    def _own_pool(self) -> Pool:
        if self.http is not None:
            raise _needs_database("transactions are made")
        if self._pool is None:
            # (closed meanwhile, perhaps, by a worker that begins anew: its calls may be repeated)
            raise ConnectionFailed("this Headgate is not open", hint="use headgate.connect(), or call open() first")
        return self._pool

    def _settings(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": None if self._pooler else 5, "application_name": "headgate"}

    def _connect(self, seconds: float | None = None) -> Connection[tuple[Any, ...]]:
        if self.http is not None:
            raise _needs_database("the schema is looked after")
        try:
            timeout = max(2, int(seconds or self._timeout))  # libpq's least; 0 would mean to wait for ever
            return Connection.connect(self.url, **self._settings(), connect_timeout=timeout)
        except psycopg.ProgrammingError:  # it quotes the part it cannot read, which may be the password
            raise InvalidArgument(
                "the database's URL cannot be read",
                hint="write postgresql://user:password@host:port/database, with %40 for an @ in the password and so on",
            ) from None
        except psycopg.Error as error:
            raise from_database(error) or error from error

    def _check_server(self) -> None:
        with self._connect() as conn:
            if (error := schema.check_server(conn.info.server_version)) is not None:
                raise error

    def _check_schema(self) -> None:
        with self._connect() as conn:
            if (error := schema.check(installed(conn))) is not None:
                raise error


def _needs_database(what: str) -> NotOverHttp:
    return NotOverHttp(
        f"{what} in the database itself, which a client over HTTP does not reach",
        hint="connect to the database for this: headgate.connect('postgresql://…')",
    )
