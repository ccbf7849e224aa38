"""Plain data that Headgate gives back. No logic, no connections."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

Order = Literal["none", "key"]
LaneBy = Literal["hash", "key", "channel"]
Retain = Literal["forever", "until_acked", "until_archived"]
ChannelSort = Literal["waiting", "oldest", "name"]
SegmentState = Literal["open", "closed", "dropped"]
State = Literal["available", "delivered", "parked", "done", "dead", "discarded", "skipped"]
Severity = Literal["problem", "warning", "note"]
SourceKind = Literal["webhook", "postgres"]
Scheme = Literal["standard", "github", "stripe", "hmac", "none"]
Backoff = float | int | list[float] | dict[str, float]


class Push(TypedDict, total=False):
    """Where and how a consumer pushes. A new one needs `url` and `secret`; with several secrets all of them sign."""

    url: str
    secret: str | list[str]  # whsec_ and 24 to 64 bytes in base64
    concurrency: int  # requests at once, of each server
    timeout: float  # seconds
    headers: dict[str, str] | None  # sent along


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an ack, nack or extend: how many messages it settled, and how many ack_ids were stale."""

    settled: int
    stale: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """How many messages were discarded, and how many were passed over: an open transaction has them `held`.

    `more` is None when that was all. After one step of `discard_some` it may say where to go on.
    """

    discarded: int
    held: int
    more: str | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream and what is in it. `messages` is counted when `exact`, otherwise estimated.

    In a list of many streams, figures may be those that maintenance saw at `sampled_at`; None: they are of now.
    """

    name: str
    lanes: int
    messages: int
    exact: bool
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    last_seq: int
    rate: float | None
    dedup_window: timedelta
    max_message_bytes: int
    consumers: int
    dead_of: str | None
    created_at: datetime
    retain: Retain
    retain_up_to: timedelta | None
    retain_at_least: timedelta | None
    max_storage: int | None
    is_full: bool
    lane_by: LaneBy
    one_message_per_key: bool
    process_unmodified: bool
    segment_rows: int
    segment_bytes: int
    segment_age: timedelta | None
    compact_every: timedelta
    sampled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer and how far it is. `unread` (and so `lag`) is counted when `exact`, otherwise estimated.

    `delivered` and `rate` are of first attempts, `redelivered` counts all others. `most_failures` is how often the
    message that failed most often has failed, of those that are not done; `due` how many parked ones could be handed
    out now; `lost` how many messages retention removed before the consumer was done with them. In a list of many,
    `unread`, `floor`, `oldest_unacked` and `dead` may be what maintenance saw at `sampled_at`; None: they are of now.
    """

    stream: str
    name: str
    filter: list[str] | None
    order: Order
    ack_wait: timedelta
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
    rate: float
    created_at: datetime
    lost: int
    max_concurrency: int | None
    release_interval: timedelta | None
    leased: bool
    lease_time: timedelta
    max_waiting: int | None
    push: dict[str, Any] | None  # secrets by their ends, headers by their names
    sampled_at: datetime | None = None
    redelivered: int = 0
    most_failures: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Where messages come from. Secrets are shown by their ends."""

    name: str
    kind: SourceKind
    stream: str
    scheme: Scheme
    secret: list[str]
    settings: dict[str, Any]
    created_at: datetime


PostgresSourceState = Literal["starting", "reading", "waiting", "failing", "lost", "paused"]


@dataclass(frozen=True, slots=True)
class PostgresSourceInfo:
    """Tables of a PostgreSQL database whose changes go to a stream, and how far they are read.

    `state`: reading; waiting, for a server that reads it; failing, which is tried again; lost: changes are missing, or
    somebody has to do something, and `error` and `hint` say what. `lsn`: every transaction up to there is in the
    stream. `place` is the database's URL without its password. `routes` has the tables with a stream or key of their
    own, `problems` what is wrong with single tables. `retained_bytes` is the WAL that the slot keeps, as of
    `looked_at`; above `warn_bytes` the doctor warns, above `drop_bytes` the slot is dropped. `backfill_rows` of about
    `backfill_of` are read by the backfills under way.
    """

    name: str
    stream: str
    place: str
    tables: list[str]
    publication: str
    slot: str
    state: PostgresSourceState
    error: str | None
    hint: str | None
    since: datetime
    reader: str | None
    lsn: str
    lag_bytes: int | None
    lag: timedelta | None
    messages: int
    rate: float | None
    created_at: datetime
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
    kind: SourceKind = "postgres"


@dataclass(frozen=True, slots=True)
class BackfillInfo:
    """A table whose rows a source reads beside its changes: how many, of about how many; why not, if it failed.

    `deleted` rows were told that the stream had and the table no longer, where that was wanted (`finds_deleted`).
    """

    table: str
    state: Literal["waiting", "running", "paused", "done", "failed"]
    rows: int
    estimate: int | None
    error: str | None
    asked_at: datetime
    finished_at: datetime | None
    from_column: str | None
    from_value: str | None
    finds_deleted: bool
    deleted: int


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """Something that reading tables needs; `advice` says what to do when it is not there."""

    name: str
    is_ok: bool
    found: str
    advice: str | None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment of a stream's log: the seqs from `first_seq` to below `end_seq`.

    `messages` is counted when it is closed; `kept_by` says why it is still there then.
    """

    stream: str
    id: int
    state: SegmentState
    first_seq: int
    end_seq: int
    messages: int | None
    bytes: int
    created_at: datetime
    closed_at: datetime | None
    last_at: datetime | None
    kept_by: str | None


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """An archive of a stream: a table in a lake at `place`, in which no message up to the seq `floor` is missing.

    `lag` is about how many messages it has still to copy, `waiting` how many closed segments it does not have yet.
    """

    stream: str
    name: str
    place: str
    floor: int
    lag: int
    at: datetime
    waiting: int


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel (or key) of a consumer whose stream has named lanes, of which something is known, or waits.

    `waiting` is what is unread and what is parked, of which `delayed` is due later; `oldest` is when the oldest of it
    was sent. `exact` is false where `waiting` is an estimate. `complete` is false where the order (and which channels
    are shown that the consumer has not come to yet) comes from a sample of a large backlog.
    """

    stream: str
    consumer: str
    channel: str | None
    state: Literal["idle", "ready", "waiting", "full"]
    in_flight: int
    parked: int
    max_concurrency: int | None
    release_interval: timedelta | None
    delivered: int
    served_at: datetime | None
    waiting: int
    exact: bool
    oldest: datetime | None
    delayed: int
    complete: bool


class Channels(list[ChannelInfo]):
    """Channels of a consumer. `next` is set when there may be more: call again with `after` it, in the same order."""

    next: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker of a leased consumer. It counts as alive until `until`, unless it is seen again."""

    stream: str
    consumer: str
    name: str
    lanes: list[int]
    joined_at: datetime
    seen_at: datetime
    until: datetime
    in_flight: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies in the stream."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    deliver_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message and its state for one consumer."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime
    state: State
    attempt: int
    visible_at: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


class Peek(list[PeekedMessage]):
    """Messages that were looked at.

    `next` is a seq when the look ended before it had seen everything, because it looks at no more than about 20,000
    messages: call again with `after` (with `newest_first`, `before`) that seq.
    """

    next: int | None = None


@dataclass(frozen=True, slots=True)
class MessageState:
    """The state of one message for one consumer."""

    consumer: str
    state: State
    attempt: int
    visible_at: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did. `not_found`: their messages were removed; `passed_over`: they come anyway, or never.

    `next_seq` is set when that was not all: go on with it as `from_seq`.
    """

    replayed: int
    not_found: int
    passed_over: int
    next_seq: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed: nacked, or expired (its deadline passed). `is_dead`: with it came the dead letter."""

    id: int
    consumer: str
    seq: int
    attempt: int
    began: datetime | None
    at: datetime
    outcome: Literal["nacked", "expired"]
    is_dead: bool
    worker: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """Something that happened to a message, or (at no time that is known) where it is now.

    Without a consumer: `sent`, or `gone`. `until` is a deadline, or when it is due.
    """

    at: datetime | None
    consumer: str | None
    event: str
    attempt: int | None
    worker: str | None
    error: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often: `seq` is its place in the dead-letter stream, `source_seq` in its own."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `hg.doctor()` found: a problem wants something done now, a warning soon."""

    severity: Severity
    subject: str
    finding: str
    advice: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send, when it has more than data: for `send_batch`."""

    data: Any
    key: str | None = None
    headers: dict[str, Any] | None = None
    delay: float | timedelta | None = None
    id: str | None = None
    channel: str | None = None
    deliver_at: datetime | str | None = None
