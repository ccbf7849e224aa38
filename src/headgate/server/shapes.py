"""The bodies, queries and answers of the routes. OpenAPI is made from these types: what they say is what is checked."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..types import ChannelInfo, ConsumerInfo, DeadLetter, MessageState, PeekedMessage, StoredMessage, StreamInfo

MOST_SEQ = 2**63 - 1

Name = Annotated[str, Meta(min_length=1, max_length=55, pattern="^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
Text = Annotated[str, Meta(max_length=10_000)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seq = Annotated[int, Meta(ge=0, le=MOST_SEQ)]
Milliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
# Other ids that look like one are answered as stale: an ack_id is nothing that a caller should read.
AckId = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.-]+$")]
AckIds = Annotated[list[AckId], Meta(min_length=1, max_length=10_000)]
Sort = Literal["seq_asc", "seq_desc"]
Filter = Annotated[list[Text], Meta(min_length=1, max_length=100)]
Backoff = float | list[float] | dict[str, float]


class Body(Struct, forbid_unknown_fields=True):
    """What a request carries: a field that is not known is an error."""


class Nothing(Struct):
    """An answer that says no more than that it was done."""


class NewStream(Body):
    """A stream to make."""

    name: Name
    lanes: Count = 16
    lane_by: Literal["hash", "key", "channel"] = "hash"
    retain: Literal["forever", "until_acked"] = "forever"
    retain_up_to_ms: Milliseconds | None = None
    retain_at_least_ms: Milliseconds | None = None
    max_storage: Bytes | None = None
    one_message_per_key: bool = False
    process_unmodified: bool = False
    dedup_window_ms: Milliseconds = 300_000
    max_message_bytes: Bytes = 16 * 1024 * 1024
    segment_rows: Count = 1_000_000
    segment_bytes: Bytes = 1 << 30
    segment_age_ms: Milliseconds | None = None
    compact_every_ms: Milliseconds = 1_800_000
    if_not_exists: bool = False


class StreamChange(Body):
    """Settings of a stream to change. null puts a setting back to none; what is left out stays."""

    retain: Literal["forever", "until_acked"] | UnsetType = UNSET
    retain_up_to_ms: Milliseconds | UnsetType | None = UNSET
    retain_at_least_ms: Milliseconds | UnsetType | None = UNSET
    max_storage: Bytes | UnsetType | None = UNSET
    process_unmodified: bool | UnsetType = UNSET
    dedup_window_ms: Milliseconds | UnsetType = UNSET
    max_message_bytes: Bytes | UnsetType = UNSET
    segment_rows: Count | UnsetType = UNSET
    segment_bytes: Bytes | UnsetType = UNSET
    segment_age_ms: Milliseconds | UnsetType | None = UNSET
    compact_every_ms: Milliseconds | UnsetType = UNSET


class Stream(Struct):
    """A stream and what is in it."""

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

    @classmethod
    def of(cls, info: StreamInfo) -> Stream:
        """The answer for what insights know."""
        return cls(**facts(info))


class NewMessage(Body):
    """A message to send. `data` is any JSON value; an `id` makes sending it again harmless."""

    data: msgspec.Raw
    key: Text | None = None
    headers: dict[str, Any] | None = None
    channel: Text | None = None
    delay_ms: Milliseconds | None = None
    id: Text | None = None


class NewMessages(Body):
    """Messages to send, all or none."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=10_000)]


class Published(Struct):
    """How many messages were sent, and their seqs in order."""

    published: int
    seqs: list[int]


class Message(Struct):
    """A message as it was sent."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    channel: str | None
    created_at: datetime


class Delivery(Struct):
    """A message that was received: it is to be settled by its ack_id."""

    ack_id: str
    message: Message
    attempt: int


class Stored(Struct):
    """A message as it lies in its stream."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    deliver_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, m: StoredMessage) -> Stored:
        """The answer for what insights know."""
        return cls(m.seq, m.key, shown(m.data), m.headers, m.deliver_at, m.created_at)


class ConsumerState(Struct):
    """The state of a message for one consumer."""

    consumer: str
    state: str
    attempt: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None

    @classmethod
    def of(cls, s: MessageState) -> ConsumerState:
        """The answer for what insights know."""
        return cls(s.consumer, s.state, s.attempt, s.visible_at, s.worker, s.reason, s.last_error)


class MessageWithStates(Struct):
    """A message, and its state for each consumer of its stream."""

    message: Stored
    consumers: list[ConsumerState]


class Peeked(Struct):
    """A message and its state for a consumer."""

    message: Stored
    state: str
    deliver_count: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None

    @classmethod
    def of(cls, m: PeekedMessage) -> Peeked:
        """The answer for what insights know."""
        stored = Stored(m.seq, m.key, shown(m.data), m.headers, None, m.created_at)
        return cls(stored, m.state, m.attempt, m.visible_at, m.worker, m.reason, m.last_error)


class NewConsumer(Body):
    """A consumer to make."""

    name: Name
    filter: Filter | Text | None = None
    order: Literal["none", "key"] = "none"
    ack_wait_ms: Milliseconds = 30_000
    max_deliver: Count | None = None
    max_ack_pending: Count | None = None
    backoff: Backoff | None = None
    start: Seq | Text = "beginning"
    max_concurrency: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    release_interval_ms: Milliseconds | None = None
    leased: bool = False
    lease_time_ms: Milliseconds = 10_000
    if_not_exists: bool = False


class ConsumerChange(Body):
    """Settings of a consumer to change. null puts a setting back to none; what is left out stays."""

    filter: Filter | Text | UnsetType | None = UNSET
    ack_wait_ms: Milliseconds | UnsetType = UNSET
    max_deliver: Count | UnsetType | None = UNSET
    max_ack_pending: Count | UnsetType | None = UNSET
    backoff: Backoff | UnsetType | None = UNSET
    max_concurrency: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    release_interval_ms: Milliseconds | UnsetType | None = UNSET
    lease_time_ms: Milliseconds | UnsetType = UNSET


class Consumer(Struct):
    """A consumer and how far it is."""

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

    @classmethod
    def of(cls, info: ConsumerInfo) -> Consumer:
        """The answer for what insights know."""
        return cls(**facts(info))


class ToReceive(Body):
    """What a worker has finished, settled in the same call."""

    ack_ids: Annotated[list[AckId], Meta(max_length=10_000)] = []


class ToAck(Body):
    """Deliveries that are done."""

    ack_ids: AckIds


class ToNack(Body):
    """Deliveries that failed."""

    ack_ids: AckIds
    delay_ms: Milliseconds | None = None
    error: Text | None = None


class ToExtend(Body):
    """Deliveries that take longer."""

    ack_ids: AckIds
    by_ms: Milliseconds


class Acked(Struct):
    """How many messages were acked; how many ack_ids were stale: settled before, or taken back."""

    acked: int
    stale: int


class Nacked(Struct):
    """How many messages were nacked; how many ack_ids were stale."""

    nacked: int
    stale: int


class Extended(Struct):
    """How many deliveries were extended; how many ack_ids were stale."""

    extended: int
    stale: int


class ToSeek(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Seq | Text


class Limits(Body):
    """The limits of one channel; those left out are the consumer's own."""

    max_concurrency: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    release_interval_ms: Milliseconds | None = None


class Channel(Struct):
    """A channel (or key, by the stream's lanes) of a consumer."""

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

    @classmethod
    def of(cls, info: ChannelInfo) -> Channel:
        """The answer for what insights know."""
        return cls(**facts(info))


class Dead(Struct):
    """A message that failed too often."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int

    @classmethod
    def of(cls, d: DeadLetter) -> Dead:
        """The answer for what insights know."""
        return cls(
            d.seq, d.key, shown(d.data), d.headers, d.failed_at, d.attempts, d.last_error, d.source_seq
        )  # fmt: skip


class ChosenDead(Body):
    """Which dead letters: these seqs, those whose key passes the filter, or all."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    filter: Filter | Text | None = None
    limit: Count | None = None


class Redriven(Struct):
    """How many dead letters were given back."""

    redriven: int


class Purged(Struct):
    """How many dead letters were thrown away."""

    purged: int


class NewToken(Body):
    """A token to make. Without `streams` it is for all of them; their patterns are written like key filters."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Literal["admin", "produce", "consume", "monitor"]], Meta(min_length=1, max_length=4)]
    streams: Filter | None = None
    rate_limit: Count | None = None
    lifetime_ms: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None = None


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
    """An administrative call."""

    id: int
    at: datetime
    who: str
    address: str | None
    action: str
    status: int


class Health(Struct):
    """How the server is."""

    status: str


class MessagesQuery(Body):
    """Which messages of a stream."""

    limit: Limit = 10
    sort: Sort = "seq_asc"
    key_pattern: Text | None = None
    before: Seq | None = None
    after: Seq | None = None


class PeekQuery(Body):
    """Which messages of a consumer. `visible`: those that could be received now, or (false) those that could not."""

    limit: Limit = 10
    sort: Sort = "seq_asc"
    visible: bool | None = None
    before: Seq | None = None
    after: Seq | None = None


class ReceiveQuery(Body):
    """How many messages, how long to wait for the first one, and for whom (where lanes are leased)."""

    batch_size: Limit = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    worker: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class PageQuery(Body):
    """How many, and after which."""

    limit: Limit = 100
    after: Seq = 0


class AuditQuery(Body):
    """How many, and before which."""

    limit: Limit = 100
    before: Seq | None = None


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


_TIMES = {"dedup_window", "retain_up_to", "retain_at_least", "ack_wait", "release_interval"}


def milliseconds(value: timedelta) -> int:
    """A length of time in whole milliseconds."""
    return value // timedelta(milliseconds=1)


def shown(data: Any) -> Any:
    """Data that the SDK has decoded, as JSON shows it. Bytes are base64."""
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode("ascii")
    if isinstance(data, str):
        return data
    try:
        return msgspec.Raw(msgspec.json.encode(data))
    except (ValueError, OverflowError, RecursionError):  # half a surrogate pair: who sends with SQL can write anything
        return json.dumps(data)
