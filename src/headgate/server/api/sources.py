"""Sources, and the webhooks that come through them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ...errors import SourceNotFound
from ...types import BackfillInfo, PostgresSourceInfo, SourceInfo
from ..http.errors import Problem
from ..http.routing import Call, Routes
from .fields import (
    Amount,
    Body,
    Columns,
    HeaderName,
    HeaderNames,
    Identifier,
    Name,
    Nothing,
    PostgresUrl,
    Response,
    RowRate,
    Secret,
    Secrets,
    TableNames,
    Where,
    fields_of,
)

routes = Routes()

SETTINGS = ("key", "id", "channel", "headers", "signature", "tolerance", "body", "rate_limit")  # of a webhook source


class SignatureForm(Body):
    """Where the signature of the scheme hmac is, and how it is made."""

    header: HeaderName
    algorithm: Literal["sha256", "sha1", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: Annotated[str, Meta(max_length=50)] = ""


class NewSource(Body):
    """A source to make. `key`, `id` and `channel`: a path in the JSON body (`customer.id`), or `header:X-Name`.

    One of kind postgres has `url` and `tables` (`public.orders`, `public.*`, `*`), and of the rest only what stands
    below them: `publication` and `slot`, where existing ones are to be used; `streams` and `keys` (columns) of single
    tables; limits of what its slot keeps; `backfill_rate` in rows a second. With `{table}` in `stream` each table has
    one of its own.
    """

    name: Name
    stream: Annotated[str, Meta(min_length=1, max_length=100)]
    kind: Literal["webhook", "postgres"] = "webhook"
    scheme: Literal["standard", "github", "stripe", "hmac", "none"] = "standard"
    secret: Secret | Secrets | None = None
    key: Where | None = None
    id: Where | None = None
    channel: Where | None = None
    headers: HeaderNames | None = None
    signature: SignatureForm | None = None
    tolerance_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] | None = None
    body: Literal["json", "any"] | None = None
    rate_limit: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    url: PostgresUrl | None = None
    tables: TableNames | None = None
    publication: Identifier | None = None
    slot: Identifier | None = None
    streams: dict[Where, Name] | None = None
    keys: dict[Where, Columns] | None = None
    warn_bytes: Amount | None = None
    drop_bytes: Amount | None = None
    backfill_rate: RowRate | None = None
    backfill: bool = False
    if_not_exists: bool = False


class SourceChange(Body):
    """Settings of a source to change. null puts a setting back to none; what is left out stays.

    Of kind postgres are `stream` and what stands from `url` on: `tables` are all that it has then, with `backfill` the
    rows of new ones are sent, and a limit of 0 is none.
    """

    stream: Name | UnsetType = UNSET
    scheme: Literal["standard", "github", "stripe", "hmac", "none"] | UnsetType = UNSET
    secret: Secret | Secrets | UnsetType | None = UNSET
    key: Where | UnsetType | None = UNSET
    id: Where | UnsetType | None = UNSET
    channel: Where | UnsetType | None = UNSET
    headers: HeaderNames | UnsetType | None = UNSET
    signature: SignatureForm | UnsetType | None = UNSET
    tolerance_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] | UnsetType | None = UNSET
    body: Literal["json", "any"] | UnsetType | None = UNSET
    rate_limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    url: PostgresUrl | UnsetType = UNSET
    tables: TableNames | UnsetType = UNSET
    streams: dict[Where, Name] | UnsetType = UNSET
    keys: dict[Where, Columns] | UnsetType = UNSET
    warn_bytes: Amount | UnsetType = UNSET
    drop_bytes: Amount | UnsetType = UNSET
    backfill_rate: RowRate | UnsetType = UNSET
    backfill: bool | UnsetType = UNSET


class RemovedSource(Body):
    """How a source is removed: `forget` leaves its slot and publication where they are."""

    forget: bool = False


class Backfill(fields_of(BackfillInfo), Response):  # type: ignore[misc]
    """A table whose rows a source reads beside its changes: how many, of about how many.

    `deleted` rows were told that the stream had and the table no longer, where that was wanted (`finds_deleted`).
    """


class Tables(fields_of(PostgresSourceInfo, leave_out=["name", "stream", "kind", "created_at"]), Response):  # type: ignore[misc]
    """Tables whose changes a source brings, and how far it is. `lsn`: everything up to there is in the stream.

    `routes`: tables with a stream or key of their own; `problems`: what is wrong with single tables. Of
    `retained_bytes` of WAL, which the slot keeps, more than `warn_bytes` is worth a warning, and more than `drop_bytes`
    ends the slot. `backfills` are listed of one source alone.
    """

    backfills: list[Backfill] | None = None

    @classmethod
    def of(cls, info: PostgresSourceInfo, /, *, backfills: list[BackfillInfo] | None = None) -> Self:  # type: ignore[override]
        """The response for what is known of a source of tables."""
        return super().of(info, backfills=None if backfills is None else [Backfill.of(b) for b in backfills])


class Source(Struct):
    """Where messages come from. Secrets are shown by their ends. `postgres` is of sources of that kind alone."""

    name: str
    kind: str
    stream: str
    scheme: str | None
    secret: list[str]
    key: str | None
    id: str | None
    channel: str | None
    headers: list[str] | None
    signature: dict[str, str] | None
    tolerance_ms: int | None
    body: str | None
    rate_limit: int | None
    created_at: datetime
    postgres: Tables | None = None

    @classmethod
    def of(cls, info: SourceInfo | PostgresSourceInfo, backfills: list[BackfillInfo] | None = None) -> Source:
        """The answer for what is known of a source."""
        if isinstance(info, PostgresSourceInfo):
            nothing: dict[str, Any] = dict.fromkeys(n if n != "tolerance" else "tolerance_ms" for n in SETTINGS)
            return cls(
                name=info.name, kind=info.kind, stream=info.stream, scheme=None, secret=[], created_at=info.created_at,
                postgres=Tables.of(info, backfills=backfills), **nothing,
            )  # fmt: skip
        found = {name: info.settings.get(name) for name in SETTINGS}
        tolerance = found.pop("tolerance")
        return cls(
            name=info.name, kind=info.kind, stream=info.stream, scheme=info.scheme, secret=info.secret,
            created_at=info.created_at, tolerance_ms=None if tolerance is None else round(tolerance * 1000), **found,
        )  # fmt: skip


SOURCE_PATH = "/api/sources/{source}"
OF_TABLES = ("url", "tables", "streams", "keys", "warn_bytes", "drop_bytes", "backfill_rate", "backfill")


@routes.route("POST", "/api/sources", scope="admin", everywhere=True, body=NewSource, response=Source, status=201)
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


@routes.route("GET", "/api/sources", scope="monitor", everywhere=True, response=list[Source])
async def list_sources(call: Call) -> list[Source]:
    """All sources."""
    sources = call.server.hg.sources
    found = [*map(Source.of, await sources.all()), *map(Source.of, await sources.all_postgres())]
    return sorted(found, key=lambda s: s.name)


@routes.route("GET", SOURCE_PATH, scope="monitor", everywhere=True, response=Source)
async def get_source(call: Call) -> Source:
    """One source."""
    found = await find(call)
    if isinstance(found, PostgresSourceInfo):
        return Source.of(found, await call.server.hg.sources.backfills(found.name))
    return Source.of(found)


@routes.route("PATCH", SOURCE_PATH, scope="admin", everywhere=True, body=SourceChange, response=Source)
async def change_source(call: Call) -> Source:
    """Changes settings of a source. Other replicas notice within a second."""
    change: SourceChange = call.body
    name = call.path["source"]
    of_tables = {n: v for n in OF_TABLES if (v := getattr(change, n)) is not UNSET}
    if isinstance(await find(call), PostgresSourceInfo):
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


@routes.route("DELETE", SOURCE_PATH, scope="admin", everywhere=True, query=RemovedSource, response=Nothing)
async def drop_source(call: Call) -> Nothing:
    """Removes a source. What it brought stays; the slot and publication that were made for it go."""
    sources, name = call.server.hg.sources, call.path["source"]
    if isinstance(await find(call), PostgresSourceInfo):
        await sources.remove_postgres(name, forget=call.query.forget)
    else:
        await sources.drop(name)
    call.server.change_source(name)
    return Nothing()


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
    return await changed(call)


async def find(call: Call) -> SourceInfo | PostgresSourceInfo:
    """A source of either kind."""
    sources, name = call.server.hg.sources, call.path["source"]
    try:
        return await sources.get(name)
    except SourceNotFound:
        return await sources.postgres(name)


async def changed(call: Call) -> Source:
    call.server.change_source(call.path["source"])
    return Source.of(await find(call))


def _settings(given: NewSource | SourceChange) -> dict[str, Any]:
    """The settings that were given, as the SDK takes them."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        value = getattr(given, "tolerance_ms" if name == "tolerance" else name)
        if value is not UNSET:
            found[name] = value / 1000 if name == "tolerance" and value is not None else value
    return dict(msgspec.to_builtins(found))
