# Generated from src/headgate/aio/sources.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Sources: what brings messages into streams from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..database import statements
from ..database.drivers import Array
from ..database.encoding import dump_json
from ..errors import InvalidArgument, SourceExists, SourceNotFound
from ..replication import setup
from ..types import BackfillInfo, PostgresSourceInfo, Scheme, SourceCheck, SourceInfo, SourceKind

if TYPE_CHECKING:
    from .client import Headgate

CREATE_SOURCE = "create it with hg.sources.create(name, stream); hg.sources.all() lists those that there are"


class Sources:
    """The sources of a database. A webhook source is a URL of the HTTP server: `POST /api/webhooks/<name>`.

    Sources of tables have methods of their own: `add_postgres`, `postgres` and `all_postgres`, `pause`, `resume` and
    `remove_postgres`. They are read by `headgate up`.
    """

    def __init__(self, hg: Headgate) -> None:
        self._hg = hg

    def create(
        self,
        name: str,
        stream: str,
        *,
        kind: SourceKind = "webhook",
        scheme: Scheme = "standard",
        secret: str | Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> SourceInfo:
        """Makes a source whose messages go to a stream.

        `scheme` says how webhooks are signed, `secret` with what (several while it is being changed). `settings`:
        "key", "id" and "channel" say where in the JSON body (`customer.id`, `/customer/id`) or in which header
        (`header:X-Name`) they are; "headers" which headers to keep; "signature", of the scheme hmac, is {"header",
        "algorithm", "encoding", "prefix"}; "tolerance" how many seconds a timestamp may be off; "body" is json or any;
        "rate_limit" is in messages a second.
        """
        params = (name, stream, kind, scheme, as_secrets(secret) or Array(), dump_json(dict(settings or {})), exist_ok)
        self._hg.run(statements.CREATE_SOURCE, params)
        return self.get(name)

    def all(self) -> list[SourceInfo]:
        """All sources."""
        return [SourceInfo(*row) for row in self._hg.run(statements.SOURCES, (None, None))]

    def get(self, name: str) -> SourceInfo:
        """One source."""
        for row in self._hg.run(statements.SOURCES, (name, name)):
            return SourceInfo(*row)
        raise SourceNotFound(f'source "{name}" does not exist', hint=CREATE_SOURCE)

    def alter(
        self,
        name: str,
        *,
        stream: str | None = None,
        scheme: Scheme | None = None,
        secret: str | Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> SourceInfo:
        """Changes what is given, of the settings those in it; a setting that is None is removed."""
        changed = None if settings is None else dump_json(dict(settings))
        self._hg.run(statements.ALTER_SOURCE, (name, stream, scheme, as_secrets(secret), changed))
        return self.get(name)

    def drop(self, name: str) -> None:
        """Removes a source. What it brought stays."""
        self._hg.run(statements.DROP_SOURCE, (name,))

    def check_postgres(self, url: str, tables: Sequence[str]) -> list[SourceCheck]:
        """Whether tables of a PostgreSQL database can be read, and what to do when they cannot. Changes nothing."""
        found = setup.check(url, as_tables(tables))
        return [SourceCheck(c.name, c.is_ok, c.found, None if c.is_ok else c.advice) for c in found]

    def add_postgres(
        self,
        name: str,
        stream: str,
        *,
        url: str,
        tables: Sequence[str],
        publication: str | None = None,
        slot: str | None = None,
        backfill: bool = False,
        exist_ok: bool = False,
    ) -> PostgresSourceInfo:
        """Has the changes of tables sent to a stream, from now on; with `backfill` also the rows that there are.

        `tables` are names (`public.orders`), whole schemas (`public.*`) or all that there are (`*`). A publication and
        a replication slot are made for the source unless existing ones are named. SourceBlocked says what is missing
        for it in that database. `headgate up` reads it.
        """
        try:
            self._hg.run(statements.CHECK_SOURCE_NAME, (name,))
        except SourceExists:
            if exist_ok:
                return self.postgres(name)
            raise
        self._hg.run(statements.STREAM_SETTINGS, (stream,))
        made = setup.prepare(url, name, as_tables(tables), publication=publication, slot=slot)
        params = (
            name, stream, url, made.place, Array(made.tables), made.publication, made.slot, Array(made.made),
            made.system_identifier, made.lsn,
        )  # fmt: skip
        try:
            self._hg.run(statements.ADD_POSTGRES_SOURCE, params)
        except BaseException:
            setup.remove(url, made.publication, made.slot, made.made)
            raise
        if backfill:
            self.backfill(name)
        return self.postgres(name)

    def backfill(self, name: str, tables: Sequence[str] | None = None) -> None:
        """Has all rows of tables (by default of all of the source's) sent, beside their changes, with action `read`.

        Asked for again, it begins anew.
        """
        chosen = None if tables is None else Array(as_tables(tables))
        self._hg.run(statements.BACKFILL_SOURCE, (name, chosen))

    def backfills(self, name: str) -> list[BackfillInfo]:
        """The tables whose rows are read or were, and how far that is."""
        return [BackfillInfo(*row) for row in self._hg.run(statements.SOURCE_BACKFILLS, (name,))]

    def all_postgres(self) -> list[PostgresSourceInfo]:
        """All sources of tables."""
        return [PostgresSourceInfo(*row) for row in self._hg.run(statements.POSTGRES_SOURCES, (None, None))]

    def postgres(self, name: str) -> PostgresSourceInfo:
        """One source of tables."""
        for row in self._hg.run(statements.POSTGRES_SOURCES, (name, name)):
            return PostgresSourceInfo(*row)
        raise SourceNotFound(f'there is no source "{name}" of tables', hint="hg.sources.all_postgres() lists them")

    def pause(self, name: str) -> None:
        """Stops reading a source of tables. Meanwhile the database that it reads keeps its WAL, which takes room."""
        self._hg.run(statements.SET_SOURCE_PAUSED, (name, True))

    def resume(self, name: str) -> None:
        """Reads a source of tables again, from where it was."""
        self._hg.run(statements.SET_SOURCE_PAUSED, (name, False))

    def remove_postgres(self, name: str, *, forget: bool = False) -> None:
        """Removes a source of tables, with the publication and slot that were made for it. What it brought stays.

        `forget=True` leaves those where they are, for a database that is gone: a slot that nobody drops keeps WAL.
        """
        if not forget:
            [(url, publication, slot, made)] = self._hg.run(statements.POSTGRES_SOURCE_ACCESS, (name,))
            self._hg.run(statements.SET_SOURCE_PAUSED, (name, True))  # or its reader would come back meanwhile
            setup.remove(url, publication, slot, made)
        self._hg.run(statements.DROP_POSTGRES_SOURCE, (name,))


def as_tables(tables: Sequence[str]) -> list[str]:
    """Names of tables."""
    if not isinstance(tables, (list, tuple)) or not all(isinstance(t, str) for t in tables):
        raise InvalidArgument("the tables are not a list of names", hint='pass ["public.orders"]')
    return list(tables)


def as_secrets(secret: str | Sequence[str] | None) -> Array | None:
    """One secret or several, as a parameter."""
    if secret is None:
        return None
    secrets = [secret] if isinstance(secret, str) else secret
    if not isinstance(secrets, (list, tuple)) or not all(isinstance(s, str) for s in secrets):
        raise InvalidArgument("the secret is not text", hint="pass a str, or a list of them while it is being changed")
    return Array(secrets)
