"""Sources of tables: whether they can be read, pause and resume, their backfills."""

from __future__ import annotations

from ... import types
from ..http.routing import Call, Routes
from .fields import Body, Identifier, PostgresUrl, Response, TableNames, Text, Where, fields_of
from .sources import SOURCE_PATH, Backfill, Source, changed

routes = Routes()


class ToCheck(Body):
    """A database whose tables could be read."""

    url: PostgresUrl
    tables: TableNames
    publication: Identifier | None = None
    slot: Identifier | None = None


class SourceCheck(fields_of(types.SourceCheck), Response):  # type: ignore[misc]
    """Something that reading tables needs; `advice` says what to do when it is not there."""


class ToRestart(Body):
    """How a source is read anew whose slot is lost: with all rows, and with a delete for each that is gone."""

    url: PostgresUrl | None = None
    backfill: bool = True
    deletions: bool = True


class ToBackfill(Body):
    """Tables whose rows are to be sent; all of the source's if none are named.

    `from_column` and `from_value`: only rows whose column is not below the value. `deletions`: a delete for each row
    that the stream has and the table no longer.
    """

    tables: TableNames | None = None
    from_column: Where | None = None
    from_value: Text | None = None
    deletions: bool = False


class SomeTables(Body):
    """Tables; all of the source's if none are named."""

    tables: TableNames | None = None


@routes.route("POST", SOURCE_PATH + "/pause", scope="admin", everywhere=True, response=Source)
async def pause_source(call: Call) -> Source:
    """Stops reading the tables of a source. Meanwhile their database keeps its WAL."""
    await call.server.hg.sources.pause(call.path["source"])
    return await changed(call)


@routes.route("POST", SOURCE_PATH + "/resume", scope="admin", everywhere=True, response=Source)
async def resume_source(call: Call) -> Source:
    """Reads the tables of a source again, from where it was."""
    await call.server.hg.sources.resume(call.path["source"])
    return await changed(call)


@routes.route("POST", SOURCE_PATH + "/restart", scope="admin", everywhere=True, body=ToRestart, response=Source)
async def restart_source(call: Call) -> Source:
    """Reads a source of tables anew, whose slot is lost: with a new slot, and a backfill of what is missing."""
    how: ToRestart = call.body
    await call.server.hg.sources.restart_postgres(
        call.path["source"], url=how.url, backfill=how.backfill, deletions=how.deletions
    )
    return await changed(call)


@routes.route(
    "POST", "/api/sources/check", scope="admin", everywhere=True, body=ToCheck, response=list[SourceCheck]
)  # fmt: skip
async def check_source(call: Call) -> list[SourceCheck]:
    """Whether tables of a PostgreSQL database can be read, and what to do when they cannot. Changes nothing."""
    what: ToCheck = call.body
    found = await call.server.hg.sources.check_postgres(
        what.url, what.tables, publication=what.publication, slot=what.slot
    )
    return [SourceCheck.of(c) for c in found]


@routes.route(
    "POST", SOURCE_PATH + "/backfill", scope="admin", everywhere=True, body=ToBackfill, response=list[Backfill]
)
async def backfill_source(call: Call) -> list[Backfill]:
    """Has all rows of tables sent, beside their changes. Asked for again, it begins anew."""
    what: ToBackfill = call.body
    await call.server.hg.sources.backfill(
        call.path["source"], what.tables, from_column=what.from_column, from_value=what.from_value,
        deletions=what.deletions,
    )  # fmt: skip
    return await _backfills(call)


@routes.route(
    "DELETE", SOURCE_PATH + "/backfill", scope="admin", everywhere=True, body=SomeTables, response=list[Backfill]
)
async def cancel_backfill(call: Call) -> list[Backfill]:
    """Ends the backfills of tables that are not done."""
    await call.server.hg.sources.cancel_backfill(call.path["source"], call.body.tables)
    return await _backfills(call)


@routes.route("POST", SOURCE_PATH + "/backfill/pause", scope="admin", everywhere=True, response=list[Backfill])
async def pause_backfill(call: Call) -> list[Backfill]:
    """Reads no rows for now. Changes are read as before."""
    await call.server.hg.sources.pause_backfill(call.path["source"])
    return await _backfills(call)


@routes.route("POST", SOURCE_PATH + "/backfill/resume", scope="admin", everywhere=True, response=list[Backfill])
async def resume_backfill(call: Call) -> list[Backfill]:
    """Reads rows again, from where it was."""
    await call.server.hg.sources.resume_backfill(call.path["source"])
    return await _backfills(call)


@routes.route("GET", SOURCE_PATH + "/backfill", scope="monitor", everywhere=True, response=list[Backfill])
async def get_backfill(call: Call) -> list[Backfill]:
    """The tables whose rows are read or were, and how far that is."""
    await call.server.hg.sources.postgres(call.path["source"])
    return await _backfills(call)


async def _backfills(call: Call) -> list[Backfill]:
    return [Backfill.of(b) for b in await call.server.hg.sources.backfills(call.path["source"])]
