# Generated from src/headgate/aio/database.py by tools/generate_sync.py: do not edit, run `make sync`.
"""The way to a database with Headgate in it, or to a server in front of one: open, run statements, close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool

from ..database import schema, statements
from ..database.columns import literals
from ..database.drivers import Row, database_name, run_sync
from ..database.encoding import dump_json, json_encoder
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
from .migrating import WAIT, in_the_way, installed, migrate
from .pooled import Pool, PooledConnection
from .suggesting import suggest

if TYPE_CHECKING:
    from ..postgres.embedded import EmbeddedServer
    from .transport import Transport


CLOSING = 0.2  # seconds for what the pool has under way, such as connecting to a database that does not answer
TRIES = 3  # of a statement whose stream is dropped, and perhaps made again, at this moment


class Database:
    """Connections to a database with Headgate in it, and its schema."""

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
    ) -> Self:
        """Connects, and checks that the server and its schema fit this code.

        `migrate=True` installs or upgrades the schema first. By default only an embedded server's schema is. `wait` and
        `tell` are those of `migrate`.
        """
        if self.http is not None:
            if migrate:
                raise needs_database("the schema is migrated")
            self.http.open()
            return self
        if self._given_url is None and self._server is None:
            self._server = self._start_or_join(self._directory)
        try:
            migrates = migrate or (migrate is None and self._given_url is None)
            self._check(with_schema=not migrates)
            if migrates:
                self.migrate(wait=wait, tell=tell)
                self._check(with_schema=True)
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

    def __enter__(self) -> Self:
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
            raise needs_database("transactions are made")
        if self._pool is None:
            # (closed meanwhile, perhaps, by a worker that begins anew: its calls may be repeated)
            raise ConnectionFailed("this Headgate is not open", hint="use headgate.connect(), or call open() first")
        return self._pool

    def _settings(self) -> dict[str, Any]:
        return {"autocommit": True, "prepare_threshold": None if self._pooler else 5, "application_name": "headgate"}

    def _connect(self, seconds: float | None = None) -> Connection[tuple[Any, ...]]:
        if self.http is not None:
            raise needs_database("the schema is looked after")
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

    def _check(self, *, with_schema: bool) -> None:
        """Raises what keeps this code from working with the server, or with the schema in it."""
        with self._connect() as conn:
            error = schema.check_server(conn.info.server_version)
            if error is None and with_schema:
                error = schema.check(installed(conn))
            if error is not None:
                raise error


def needs_database(what: str) -> NotOverHttp:
    """The error of a call that a client over HTTP cannot make."""
    return NotOverHttp(
        f"{what} in the database itself, which a client over HTTP does not reach",
        hint="connect to the database for this: headgate.connect('postgresql://…')",
    )
