"""Sources that read tables of a PostgreSQL database: to make, look at, change and remove them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..database import statements
from ..database.columns import Array
from ..database.encoding import dump_json
from ..errors import InvalidArgument, SourceBlocked, SourceExists, SourceNotFound
from ..http import tables as requests
from ..replication import setup
from ..replication.changes import Route
from ..types import BackfillInfo, PostgresSourceInfo, SourceCheck

if TYPE_CHECKING:
    from .client import AsyncHeadgate

T = TypeVar("T")


class AsyncTableSources:
    """The part of `hg.sources` that is about tables."""

    _hg: AsyncHeadgate

    async def check_postgres(
        self, url: str, tables: Sequence[str], *, publication: str | None = None, slot: str | None = None
    ) -> list[SourceCheck]:
        """Whether tables of a PostgreSQL database can be read, and what to do when they cannot. Changes nothing."""
        if (http := self._hg.http) is not None:
            asked = requests.check(url=url, tables=as_tables(tables), publication=publication, slot=slot)
            return [SourceCheck(*row) for row in await http.call(asked)]
        found, _ = await _aside(setup.check, url, as_tables(tables), publication=publication, slot=slot)
        return [SourceCheck(c.name, c.is_ok, c.found, None if c.is_ok else c.advice) for c in found]

    async def add_postgres(
        self,
        name: str,
        stream: str,
        *,
        url: str,
        tables: Sequence[str],
        publication: str | None = None,
        slot: str | None = None,
        streams: Mapping[str, str] | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        warn_bytes: int | None = None,
        drop_bytes: int | None = None,
        backfill_rate: int | None = None,
        backfill: bool = False,
        exist_ok: bool = False,
    ) -> PostgresSourceInfo:
        """Has the changes of tables sent to a stream, from now on; with `backfill` also the rows that there are.

        `tables` are names (`public.orders`), whole schemas (`public.*`) or all that there are (`*`). A publication and
        a replication slot are made for the source unless existing ones are named. SourceBlocked says what is missing
        for it in that database. `headgate up` reads it.

        With `{table}` in its name, and perhaps `{schema}`, each table has a stream of its own, which is made if it is
        not there. `streams` names those of single tables, `keys` the columns that their messages are keyed by.
        `warn_bytes` is how much WAL its slot may keep before the doctor warns (1 GiB), `drop_bytes` how much before
        the slot is dropped, for the sake of the database; `backfill_rate` is in rows a second.
        """
        if (http := self._hg.http) is not None:
            await http.call(requests.add(
                name=name, stream=stream, url=url, tables=as_tables(tables), publication=publication, slot=slot,
                streams=streams, keys=keys, warn_bytes=warn_bytes, drop_bytes=drop_bytes, backfill_rate=backfill_rate,
                backfill=backfill, if_not_exists=exist_ok,
            ))  # fmt: skip
            return await self.postgres(name)
        try:
            await self._hg.run(statements.CHECK_SOURCE_NAME, (name,))
        except SourceExists:
            if exist_ok:
                return await self.postgres(name)
            raise
        routing = as_routing(stream, streams, keys)
        for own in [*([] if routing.template else [stream]), *routing.streams.values()]:
            await self._hg.run(statements.STREAM_SETTINGS, (own,))
        # async-only: begin
        work = asyncio.create_task(
            asyncio.to_thread(
                setup.prepare, url, name, as_tables(tables), publication=publication, slot=slot, routing=routing
            )
        )
        try:
            made = await asyncio.shield(work)
        except asyncio.CancelledError:  # a slot that nobody knows of would keep WAL for ever
            made = await work
            await asyncio.to_thread(setup.remove, url, made.publication, made.slot, made.made)
            raise
        # async-only: end
        # sync-only: begin
        # made = setup.prepare(url, name, as_tables(tables), publication=publication, slot=slot, routing=routing)
        # sync-only: end
        is_added = False
        try:
            if routing.template is not None:
                stream = next(r.stream for r in made.routes.values() if r.stream is not None)
                for route in made.routes.values():
                    await self._hg.stream(route.stream or stream, create=True)
            await self._hg.run(statements.ADD_POSTGRES_SOURCE, (name, stream, dump_json(made.access())))
            is_added = True
            await self._route(name, made.routes)
            await self._limit(name, warn_bytes, drop_bytes, backfill_rate)
            if backfill:
                await self.backfill(name)
        except BaseException:
            await _aside(setup.remove, url, made.publication, made.slot, made.made)
            if is_added:
                await self._hg.run(statements.DROP_POSTGRES_SOURCE, (name,))
            raise
        return await self.postgres(name)

    async def alter_postgres(
        self,
        name: str,
        *,
        stream: str | None = None,
        url: str | None = None,
        tables: Sequence[str] | None = None,
        streams: Mapping[str, str] | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        warn_bytes: int | None = None,
        drop_bytes: int | None = None,
        backfill_rate: int | None = None,
        backfill: bool = False,
    ) -> PostgresSourceInfo:
        """Changes what is given of a source of tables. `tables` are all that it has then; with `backfill` the rows of
        those that are new are sent. `url` is another way to the same database. A limit of 0 is none."""
        if (http := self._hg.http) is not None:
            await http.call(requests.alter(
                name, stream=stream, url=url, tables=None if tables is None else as_tables(tables), streams=streams,
                keys=keys, warn_bytes=warn_bytes, drop_bytes=drop_bytes, backfill_rate=backfill_rate,
                backfill=backfill or None,
            ))  # fmt: skip
            return await self.postgres(name)
        [(old_url, publication, slot, made, system, before)] = await self._hg.run(
            statements.POSTGRES_SOURCE_ACCESS, (name,)
        )
        place = None
        if url is not None:
            place = await _aside(setup.check_place, url, system, slot)
        chosen = before
        if tables is not None or streams or keys:
            routing = as_routing(None, streams, keys)
            for own in routing.streams.values():
                await self._hg.run(statements.STREAM_SETTINGS, (own,))
            wanted = before if tables is None else as_tables(tables)
            chosen, routes = await _aside(setup.change_tables, url or old_url, publication, made, wanted, routing)
        params = (
            name, stream, url, place, Array(chosen) if chosen != before else None, warn_bytes, drop_bytes,
            backfill_rate, None,
        )  # fmt: skip
        await self._hg.run(statements.ALTER_POSTGRES_SOURCE, params)
        if chosen is not before:
            await self._route(name, routes)
            if backfill and (new := [t for t in chosen if t not in before]):
                await self.backfill(name, new)
        return await self.postgres(name)

    async def restart_postgres(
        self, name: str, *, url: str | None = None, backfill: bool = True, deletions: bool = True
    ) -> PostgresSourceInfo:
        """Reads a source of tables anew, whose slot or publication is lost: makes both again where they were made for
        it. What happened in between comes by a backfill: the rows that there are, and, with `deletions`, a delete for
        each that the stream has and the table no longer."""
        if (http := self._hg.http) is not None:
            await http.call(requests.restart(name, url=url, backfill=backfill, deletions=deletions))
            return await self.postgres(name)
        [(old_url, publication, slot, made, _, tables)] = await self._hg.run(statements.POSTGRES_SOURCE_ACCESS, (name,))
        url = url or old_url
        await self._hg.run(statements.SET_SOURCE_PAUSED, (name, True))
        await _aside(setup.remove, url, publication, slot, made)
        kept = None if "publication" in made else publication
        ready = await _aside(setup.prepare, url, name, tables, publication=kept)
        await self._hg.run(statements.RESTART_POSTGRES_SOURCE, (name, dump_json(ready.access())))
        if backfill:
            await self.backfill(name, deletions=deletions)
        return await self.postgres(name)

    async def backfill(
        self,
        name: str,
        tables: Sequence[str] | None = None,
        *,
        from_column: str | None = None,
        from_value: str | None = None,
        deletions: bool = False,
    ) -> None:
        """Has all rows of tables (by default of all of the source's) sent, beside their changes, with action `read`.

        `from_column` and `from_value`: only those whose column is not below the value. `deletions`: a delete for each
        row that the stream has and the table no longer. Asked for again, it begins anew.
        """
        chosen = None if tables is None else Array(as_tables(tables))
        value = None if from_value is None else str(from_value)
        await self._hg.run(statements.BACKFILL_SOURCE, (name, chosen, from_column, value, deletions))

    async def backfills(self, name: str) -> list[BackfillInfo]:
        """The tables whose rows are read or were, and how far that is."""
        return [BackfillInfo(*row) for row in await self._hg.run(statements.SOURCE_BACKFILLS, (name,))]

    async def pause_backfill(self, name: str) -> None:
        """Reads no rows for now. Changes are read as before."""
        await self._hg.run(statements.ALTER_POSTGRES_SOURCE, (name, *[None] * 7, True))

    async def resume_backfill(self, name: str) -> None:
        """Reads rows again, from where it was."""
        await self._hg.run(statements.ALTER_POSTGRES_SOURCE, (name, *[None] * 7, False))

    async def cancel_backfill(self, name: str, tables: Sequence[str] | None = None) -> None:
        """Ends backfills that are not done."""
        await self._hg.run(statements.CANCEL_BACKFILL, (name, None if tables is None else Array(as_tables(tables))))

    async def all_postgres(self) -> list[PostgresSourceInfo]:
        """All sources of tables."""
        return [PostgresSourceInfo(*row) for row in await self._hg.run(statements.POSTGRES_SOURCES, (None, None))]

    async def postgres(self, name: str) -> PostgresSourceInfo:
        """One source of tables."""
        for row in await self._hg.run(statements.POSTGRES_SOURCES, (name, name)):
            return PostgresSourceInfo(*row)
        raise SourceNotFound(f'there is no source "{name}" of tables', hint="hg.sources.all_postgres() lists them")

    async def pause(self, name: str) -> None:
        """Stops reading a source of tables. Meanwhile the database that it reads keeps its WAL, which takes room."""
        await self._hg.run(statements.SET_SOURCE_PAUSED, (name, True))

    async def resume(self, name: str) -> None:
        """Reads a source of tables again, from where it was."""
        await self._hg.run(statements.SET_SOURCE_PAUSED, (name, False))

    async def remove_postgres(self, name: str, *, forget: bool = False) -> None:
        """Removes a source of tables, with the publication and slot that were made for it. What it brought stays.

        `forget=True` leaves those where they are, for a database that is gone: a slot that nobody drops keeps WAL.
        """
        if (http := self._hg.http) is not None:
            await http.call(requests.remove(name, forget=forget))
            return
        if not forget:
            [(url, publication, slot, made, *_)] = await self._hg.run(statements.POSTGRES_SOURCE_ACCESS, (name,))
            was_paused = (await self.postgres(name)).state == "paused"
            await self._hg.run(statements.SET_SOURCE_PAUSED, (name, True))  # or its reader would come back meanwhile
            try:
                await _aside(setup.remove, url, publication, slot, made)
            except SourceBlocked as error:
                await self._hg.run(statements.SET_SOURCE_PAUSED, (name, was_paused))  # it is still there
                away = f"if that database is gone: `headgate source remove {name} --forget`, or forget=True"
                raise SourceBlocked(error.message, hint=f"{error.hint}; {away}" if error.hint else away) from None
        await self._hg.run(statements.DROP_POSTGRES_SOURCE, (name,))

    async def _route(self, name: str, routes: Mapping[str, Route]) -> None:
        for table, route in routes.items():
            await self._hg.run(statements.ROUTE_SOURCE, (name, table, route.stream, Array(route.key)))

    async def _limit(self, name: str, warn: int | None, drop: int | None, rate: int | None) -> None:
        if (warn, drop, rate) != (None, None, None):
            params = (name, None, None, None, None, warn, drop, rate, None)
            await self._hg.run(statements.ALTER_POSTGRES_SOURCE, params)


# async-only: begin
async def _aside(work: Callable[..., T], *args: Any, **more: Any) -> T:
    """Runs what waits for another database, elsewhere."""
    return await asyncio.to_thread(work, *args, **more)


# async-only: end
# sync-only: begin
# def _aside(work: Callable[..., T], *args: Any, **more: Any) -> T:
#     """Runs what waits for another database."""
#     return work(*args, **more)
#
#
# sync-only: end
def as_tables(tables: Sequence[str]) -> list[str]:
    """Names of tables."""
    if not isinstance(tables, (list, tuple)) or not all(isinstance(t, str) for t in tables):
        raise InvalidArgument("the tables are not a list of names", hint='pass ["public.orders"]')
    return list(tables)


def as_routing(
    stream: str | None, streams: Mapping[str, str] | None, keys: Mapping[str, Sequence[str]] | None
) -> setup.Routing:
    """Where tables go."""
    for given, what in ((streams, "streams"), (keys, "keys")):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"{what} is not a mapping", hint='pass {"public.orders": …}')
    own = {table: tuple(as_tables(key)) for table, key in (keys or {}).items()}
    template = stream if stream is not None and "{table}" in stream else None
    return setup.Routing(dict(streams or {}), own, template)
