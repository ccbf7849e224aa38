"""Sources, and the webhooks that come through them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from ...errors import SourceNotFound
from ...types import PostgresSourceInfo, SourceInfo
from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from ..intake.webhooks import take
from .answers import SETTINGS, Backfill, Nothing, Source, SourceCheck, Taken
from .requests import NewSource, RemovedSource, SomeTables, SourceChange, ToBackfill, ToCheck, ToRestart

routes = Routes()

SOURCE = "/api/sources/{source}"
OF_TABLES = ("url", "tables", "streams", "keys", "warn_bytes", "drop_bytes", "backfill_rate", "backfill")


@routes.route("POST", "/api/sources", scope="admin", everywhere=True, body=NewSource, answer=Source, status=201)
async def create_source(call: Call) -> Source:
    """Makes a source."""
    new: NewSource = call.body
    if new.kind == "postgres":
        return await _create_postgres(call, new)
    if new.url is not None or new.tables is not None:
        raise Problem(422, "invalid_body", "a webhook source reads no tables", 'say "kind": "postgres"')
    made = await call.server.hg.sources.create(
        new.name,
        new.stream,
        kind=new.kind,
        scheme=new.scheme,
        secret=new.secret,
        settings=_settings(new),
        exist_ok=new.if_not_exists,
    )
    call.server.change_source(new.name)
    return Source.of(made)


@routes.route("GET", "/api/sources", scope="monitor", everywhere=True, answer=list[Source])
async def list_sources(call: Call) -> list[Source]:
    """All sources."""
    sources = call.server.hg.sources
    found = [*map(Source.of, await sources.all()), *map(Source.of, await sources.all_postgres())]
    return sorted(found, key=lambda s: s.name)


@routes.route("GET", SOURCE, scope="monitor", everywhere=True, answer=Source)
async def get_source(call: Call) -> Source:
    """One source."""
    found = await _find(call)
    if isinstance(found, PostgresSourceInfo):
        return Source.of(found, await call.server.hg.sources.backfills(found.name))
    return Source.of(found)


@routes.route("PATCH", SOURCE, scope="admin", everywhere=True, body=SourceChange, answer=Source)
async def change_source(call: Call) -> Source:
    """Changes settings of a source. Other replicas notice within a second."""
    change: SourceChange = call.body
    name = call.path["source"]
    of_tables = {n: v for n in OF_TABLES if (v := getattr(change, n)) is not UNSET}
    if isinstance(await _find(call), PostgresSourceInfo):
        return await _change_tables(call, change, of_tables)
    if of_tables:
        raise Problem(422, "invalid_body", "a webhook source reads no tables", "leave out " + ", ".join(of_tables))
    secret = [] if change.secret is None else change.secret
    changed = await call.server.hg.sources.alter(
        name,
        stream=None if change.stream is UNSET else change.stream,
        scheme=None if change.scheme is UNSET else change.scheme,
        secret=None if secret is UNSET else secret,
        settings=_settings(change),
    )
    call.server.change_source(name)
    return Source.of(changed)


@routes.route("DELETE", SOURCE, scope="admin", everywhere=True, query=RemovedSource, answer=Nothing)
async def drop_source(call: Call) -> Nothing:
    """Removes a source. What it brought stays; the slot and publication that were made for it go."""
    sources, name = call.server.hg.sources, call.path["source"]
    if isinstance(await _find(call), PostgresSourceInfo):
        await sources.remove_postgres(name, forget=call.query.forget)
    else:
        await sources.drop(name)
    call.server.change_source(name)
    return Nothing()


@routes.route("POST", SOURCE + "/pause", scope="admin", everywhere=True, answer=Source)
async def pause_source(call: Call) -> Source:
    """Stops reading the tables of a source. Meanwhile their database keeps its WAL."""
    await call.server.hg.sources.pause(call.path["source"])
    return await _changed(call)


@routes.route("POST", SOURCE + "/resume", scope="admin", everywhere=True, answer=Source)
async def resume_source(call: Call) -> Source:
    """Reads the tables of a source again, from where it was."""
    await call.server.hg.sources.resume(call.path["source"])
    return await _changed(call)


@routes.route("POST", SOURCE + "/restart", scope="admin", everywhere=True, body=ToRestart, answer=Source)
async def restart_source(call: Call) -> Source:
    """Reads a source of tables anew, whose slot is lost: with a new slot, and a backfill of what is missing."""
    how: ToRestart = call.body
    await call.server.hg.sources.restart_postgres(
        call.path["source"], url=how.url, backfill=how.backfill, deletions=how.deletions
    )
    return await _changed(call)


@routes.route(
    "POST", "/api/sources/check", scope="admin", everywhere=True, body=ToCheck, answer=list[SourceCheck]
)  # fmt: skip
async def check_source(call: Call) -> list[SourceCheck]:
    """Whether tables of a PostgreSQL database can be read, and what to do when they cannot. Changes nothing."""
    what: ToCheck = call.body
    found = await call.server.hg.sources.check_postgres(
        what.url, what.tables, publication=what.publication, slot=what.slot
    )
    return [SourceCheck(c.name, c.is_ok, c.found, c.advice) for c in found]


@routes.route("POST", SOURCE + "/backfill", scope="admin", everywhere=True, body=ToBackfill, answer=list[Backfill])
async def backfill_source(call: Call) -> list[Backfill]:
    """Has all rows of tables sent, beside their changes. Asked for again, it begins anew."""
    what: ToBackfill = call.body
    await call.server.hg.sources.backfill(
        call.path["source"], what.tables, from_column=what.from_column, from_value=what.from_value,
        deletions=what.deletions,
    )  # fmt: skip
    return await _backfills(call)


@routes.route("DELETE", SOURCE + "/backfill", scope="admin", everywhere=True, body=SomeTables, answer=list[Backfill])
async def cancel_backfill(call: Call) -> list[Backfill]:
    """Ends the backfills of tables that are not done."""
    await call.server.hg.sources.cancel_backfill(call.path["source"], call.body.tables)
    return await _backfills(call)


@routes.route("POST", SOURCE + "/backfill/pause", scope="admin", everywhere=True, answer=list[Backfill])
async def pause_backfill(call: Call) -> list[Backfill]:
    """Reads no rows for now. Changes are read as before."""
    await call.server.hg.sources.pause_backfill(call.path["source"])
    return await _backfills(call)


@routes.route("POST", SOURCE + "/backfill/resume", scope="admin", everywhere=True, answer=list[Backfill])
async def resume_backfill(call: Call) -> list[Backfill]:
    """Reads rows again, from where it was."""
    await call.server.hg.sources.resume_backfill(call.path["source"])
    return await _backfills(call)


@routes.route("GET", SOURCE + "/backfill", scope="monitor", everywhere=True, answer=list[Backfill])
async def get_backfill(call: Call) -> list[Backfill]:
    """The tables whose rows are read or were, and how far that is."""
    await call.server.hg.sources.postgres(call.path["source"])
    return await _backfills(call)


@routes.route("POST", "/api/webhooks/{source}", scope=None, raw_body=True, answer=Taken)
async def take_webhook(call: Call) -> Taken:
    """Takes a webhook, once its signature was checked; answers once it is on disk."""
    server = call.server
    source = await server.sources.find(call.path["source"])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    sending = take(source, headers, call.body, trace=call.trace)
    if source.rate_limit is not None:
        server.webhook_rates.spend(f"source {source.name}", source.rate_limit, "this source")
    [seq] = await server.batching.send(source.stream, sending)
    return Taken(seq)


async def _create_postgres(call: Call, new: NewSource) -> Source:
    if new.url is None or new.tables is None:
        raise Problem(422, "invalid_body", "a postgres source needs url and tables", "give both")
    if new.scheme != "standard" or new.secret is not None or any(v is not None for v in _settings(new).values()):
        raise Problem(422, "invalid_body", "these settings are of webhook sources", "leave them out")
    made = await call.server.hg.sources.add_postgres(
        new.name, new.stream, url=new.url, tables=new.tables, publication=new.publication, slot=new.slot,
        streams=new.streams, keys=new.keys, warn_bytes=new.warn_bytes, drop_bytes=new.drop_bytes,
        backfill_rate=new.backfill_rate, backfill=new.backfill, exist_ok=new.if_not_exists,
    )  # fmt: skip
    call.server.change_source(new.name)
    return Source.of(made)


async def _change_tables(call: Call, change: SourceChange, of_tables: dict[str, Any]) -> Source:
    wrong = [n for n in ("scheme", "secret") if getattr(change, n) is not UNSET] + [*_settings(change)]
    if wrong:
        raise Problem(422, "invalid_body", "these settings are of webhook sources", "leave out " + ", ".join(wrong))
    stream = None if change.stream is UNSET else change.stream
    await call.server.hg.sources.alter_postgres(call.path["source"], stream=stream, **of_tables)
    return await _changed(call)


async def _find(call: Call) -> SourceInfo | PostgresSourceInfo:
    """A source of either kind."""
    sources, name = call.server.hg.sources, call.path["source"]
    try:
        return await sources.get(name)
    except SourceNotFound:
        return await sources.postgres(name)


async def _backfills(call: Call) -> list[Backfill]:
    return [Backfill.of(b) for b in await call.server.hg.sources.backfills(call.path["source"])]


async def _changed(call: Call) -> Source:
    call.server.change_source(call.path["source"])
    return Source.of(await _find(call))


def _settings(given: NewSource | SourceChange) -> dict[str, Any]:
    """The settings that were given, as the SDK takes them."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        value = getattr(given, "tolerance_ms" if name == "tolerance" else name)
        if value is not UNSET:
            found[name] = value / 1000 if name == "tolerance" and value is not None else value
    return dict(msgspec.to_builtins(found))
