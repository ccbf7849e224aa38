"""The answers of the routes, as OpenAPI describes them, and how they follow from what insights know."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from ...types import (
    ArchiveInfo,
    BackfillInfo,
    ChannelInfo,
    ConsumerInfo,
    PostgresSourceInfo,
    SourceInfo,
    StreamInfo,
    WorkerInfo,
)

SETTINGS = ("key", "id", "channel", "headers", "signature", "tolerance", "body", "rate_limit")  # of a source


class Nothing(Struct):
    """An answer that says no more than that it was done."""


class Stream(Struct):
    """A stream and what is in it. In a list of many, its figures may be what maintenance saw at `sampled_at`; null:
    they are of now."""

    name: str
    lanes: int
    messages: int
    exact: bool
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    last_seq: int
    rate: float | None
    dedup_window_ms: int | None
    max_message_bytes: int
    consumers: int
    dead_of: str | None
    created_at: datetime
    retain: str
    retain_up_to_ms: int | None
    retain_at_least_ms: int | None
    max_storage: int | None
    is_full: bool
    lane_by: str
    one_message_per_key: bool
    process_unmodified: bool
    segment_rows: int
    segment_bytes: int
    segment_age_ms: int | None
    compact_every_ms: int | None
    sampled_at: datetime | None = None

    @classmethod
    def of(cls, info: StreamInfo) -> Stream:
        """The answer for what insights know."""
        return cls(**facts(info))


class StreamSettings(Struct):
    """What those who send and receive need to know of a stream."""

    lanes: int
    max_message_bytes: int


class ConsumerSettings(Struct):
    """What a worker needs to know of its consumer. `slot_modulus`: of lanes by key or channel, how many leases share
    them."""

    order: str
    ack_wait_ms: int
    backoff: Any
    leased: bool
    lease_time_ms: int
    slot_modulus: int | None
    max_waiting: int | None


class Archive(Struct):
    """An archive of a stream: no message up to the seq `floor` is missing there."""

    stream: str
    name: str
    place: str
    floor: int
    lag: int
    at: datetime
    waiting: int

    @classmethod
    def of(cls, info: ArchiveInfo) -> Archive:
        """The answer for what insights know."""
        return cls(**facts(info))


class Push(Struct):
    """Where a consumer pushes to. Secrets are shown by their ends, headers by their names."""

    url: str
    secret: list[str]
    concurrency: int
    timeout_ms: int
    headers: list[str]
    note: str | None
    last_error: str | None = None


class Consumer(Struct):
    """A consumer and how far it is. In a list of many, `unread`, `floor`, `oldest_unacked` and `dead` may be what
    maintenance saw at `sampled_at`; null: they are of now."""

    stream: str
    name: str
    filter: list[str] | None
    order: str
    ack_wait_ms: int | None
    max_deliver: int | None
    max_ack_pending: int | None
    backoff: Any
    paused: bool
    unread: int
    exact: bool
    in_flight: int
    parked: int
    dead: int
    lag: int
    oldest_delivery: datetime | None
    oldest_unacked: datetime | None
    floor: int | None
    delivered: int
    rate: float | None
    created_at: datetime
    lost: int
    max_concurrency: int | None
    release_interval_ms: int | None
    leased: bool
    lease_time_ms: int | None
    max_waiting: int | None
    push: Push | None
    sampled_at: datetime | None = None
    redelivered: int = 0
    most_failures: int = 0
    due: int = 0

    @classmethod
    def of(cls, info: ConsumerInfo) -> Consumer:
        """The answer for what insights know."""
        p = info.push
        push = p and Push(
            p["url"],
            p["secret"],
            p["concurrency"],
            round(p["timeout"] * 1000),
            p["headers"] or [],
            p["note"],
            p.get("last_error"),
        )
        return cls(**{**facts(info), "push": push})


class Tables(Struct):
    """Tables whose changes a source brings, and how far it is. `lsn`: everything up to there is in the stream.

    `routes`: tables with a stream or key of their own; `problems`: what is wrong with single tables. Of
    `retained_bytes` of WAL, which the slot keeps, more than `warn_bytes` is worth a warning, and more than `drop_bytes`
    ends the slot. `backfills` are listed of one source alone.
    """

    place: str
    tables: list[str]
    publication: str
    slot: str
    state: str
    error: str | None
    hint: str | None
    since: datetime
    reader: str | None
    lsn: str
    lag_bytes: int | None
    lag_ms: int | None
    messages: int
    rate: float | None
    routes: dict[str, Any]
    problems: list[str]
    retained_bytes: int | None
    wal_status: str | None
    looked_at: datetime | None
    warn_bytes: int
    drop_bytes: int | None
    backfill_rate: int | None
    backfill_paused: bool
    backfill_rows: int | None
    backfill_of: int | None
    backfills: list[Backfill] | None = None

    @classmethod
    def of(cls, info: PostgresSourceInfo, backfills: list[BackfillInfo] | None = None) -> Tables:
        """The answer for what is known of a source of tables."""
        found = {name: getattr(info, name) for name in cls.__struct_fields__ if name not in ("lag_ms", "backfills")}
        lag = None if info.lag is None else round(info.lag.total_seconds() * 1000)
        return cls(lag_ms=lag, backfills=None if backfills is None else [Backfill.of(b) for b in backfills], **found)


class SourceCheck(Struct):
    """Something that reading tables needs; `advice` says what to do when it is not there."""

    name: str
    is_ok: bool
    found: str
    advice: str | None


class Backfill(Struct):
    """A table whose rows a source reads beside its changes: how many, of about how many.

    `deleted` rows were told that the stream had and the table no longer, where that was wanted (`finds_deleted`).
    """

    table: str
    state: str
    rows: int
    estimate: int | None
    error: str | None
    asked_at: datetime
    finished_at: datetime | None
    from_column: str | None
    from_value: str | None
    finds_deleted: bool
    deleted: int

    @classmethod
    def of(cls, info: BackfillInfo) -> Backfill:
        """The answer for what is known of a backfill."""
        return cls(**{name: getattr(info, name) for name in cls.__struct_fields__})


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
                postgres=Tables.of(info, backfills), **nothing,
            )  # fmt: skip
        found = {name: info.settings.get(name) for name in SETTINGS}
        tolerance = found.pop("tolerance")
        return cls(
            name=info.name, kind=info.kind, stream=info.stream, scheme=info.scheme, secret=info.secret,
            created_at=info.created_at, tolerance_ms=None if tolerance is None else round(tolerance * 1000), **found,
        )  # fmt: skip


class Taken(Struct):
    """A webhook that is in the stream, on disk; its delivery was there before if it is an old seq."""

    seq: int


class Channel(Struct):
    """A channel (or key, by the stream's lanes) of a consumer.

    What is `waiting` was counted when it is `exact`; the order comes from a sample unless it is `complete`.
    """

    stream: str
    consumer: str
    channel: str | None
    state: str
    in_flight: int
    parked: int
    max_concurrency: int | None
    release_interval_ms: int | None
    delivered: int
    served_at: datetime | None
    waiting: int = 0
    exact: bool = True
    oldest: datetime | None = None
    delayed: int = 0
    complete: bool = True

    @classmethod
    def of(cls, info: ChannelInfo) -> Channel:
        """The answer for what insights know."""
        return cls(**facts(info))


class Worker(Struct):
    """A worker of a leased consumer. It counts as alive until `until`, unless it is seen again."""

    stream: str
    consumer: str
    name: str
    lanes: list[int]
    joined_at: datetime
    seen_at: datetime
    until: datetime
    in_flight: int

    @classmethod
    def of(cls, info: WorkerInfo) -> Worker:
        """The answer for what insights know."""
        return cls(**facts(info))


class Leases(Struct):
    """The lanes that are leased to a worker now, and how soon it must be seen again."""

    worker: str
    lanes: list[int]
    lease_time_ms: int


class Left(Struct):
    """How many lanes are free for others."""

    freed: int


class MadeToken(Struct):
    """A new token: `token` is shown this once."""

    id: str
    token: str


class Token(Struct):
    """A token, without its secret."""

    id: str
    name: str
    scopes: list[str]
    streams: list[str] | None
    rate_limit: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class Audited(Struct):
    """An administrative call: the token and its scopes then, the stream, and what was asked for (no secrets)."""

    id: int
    at: datetime
    who: str
    address: str | None
    action: str
    status: int
    token: str | None
    scopes: list[str] | None
    stream: str | None
    details: dict[str, Any] | None


class Me(Struct):
    """Who calls. `everywhere`: the token is for all streams; without `auth`, nobody needs one.

    `environment`: what the server calls this place, and its colour: "production:red".
    """

    id: str
    name: str
    scopes: list[str]
    everywhere: bool
    auth: bool
    version: str
    environment: str


class Session(Struct):
    """Who a browser is logged in as, if it is."""

    me: Me | None


class Welcome(Struct):
    """What this server is."""

    name: str
    links: dict[str, str]
    token: str | None


class Health(Struct):
    """How the server is."""

    status: str


def facts(info: Any) -> dict[str, Any]:
    """The fields of a dataclass; lengths of time are in milliseconds, and named so."""
    found: dict[str, Any] = {}
    for name in info.__slots__:
        value = getattr(info, name)
        if name in _TIMES:
            found[name + "_ms"] = None if value is None else milliseconds(value)
        else:
            found[name] = value
    return found


_TIMES = {
    "dedup_window", "retain_up_to", "retain_at_least", "segment_age", "compact_every",
    "ack_wait", "release_interval", "lease_time",
}  # fmt: skip


def milliseconds(value: timedelta) -> int:
    """A length of time in whole milliseconds."""
    return value // timedelta(milliseconds=1)
