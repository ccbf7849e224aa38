"""The bodies and queries of the routes. OpenAPI is made from these types: what they say is what is checked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...settings import CONSUMER, STREAM, changeable
from .fields import (
    AckId,
    AckIds,
    Amount,
    Body,
    Columns,
    Count,
    Filter,
    HeaderName,
    HeaderNames,
    Identifier,
    Limit,
    Milliseconds,
    Moment,
    Name,
    PostgresUrl,
    PushUrl,
    RowRate,
    Secret,
    Secrets,
    Seq,
    Sort,
    TableNames,
    Text,
    Where,
    change_body,
    new_body,
)

NewStream = new_body(
    "NewStream",
    "A stream to make. Settings that are left out, or null, have their defaults; an existing one may have others.",
    STREAM,
)
StreamChange = change_body(
    "StreamChange",
    "Settings of a stream to change. null puts a setting back to none; what is left out stays.",
    {"lanes": STREAM["lanes"], **changeable(STREAM)},
)


class NewMessage(Body):
    """A message to send. `data` is any JSON value; an `id` makes sending it again harmless.

    It is delivered after `delay_ms`, or at `deliver_at`, at the earliest.
    """

    data: msgspec.Raw
    key: Text | None = None
    headers: dict[str, Any] | None = None
    channel: Text | None = None
    delay_ms: Milliseconds | None = None
    id: Text | None = None
    deliver_at: Moment | None = None


class NewMessages(Body):
    """Messages to send, all or none."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=10_000)]


class PushSettings(Body):
    """Where to post messages to. Secrets are written `whsec_` and 24 to 64 bytes in base64; several sign with each.

    A new one needs a secret; one that is there may be left to its own.
    """

    url: PushUrl
    secret: Secret | Secrets | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=100, le=300_000)] | UnsetType = UNSET
    headers: dict[str, Text] | UnsetType | None = UNSET


class PushChange(Body):
    """What to change of it. A consumer that does not push yet needs a url and a secret."""

    url: PushUrl | UnsetType = UNSET
    secret: Secret | Secrets | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=100, le=300_000)] | UnsetType = UNSET
    headers: dict[str, Text] | UnsetType | None = UNSET


NewConsumer = new_body(
    "NewConsumer",
    "A consumer to make. Settings that are left out, or null, have their defaults; an existing one may have others.",
    CONSUMER,
    push=PushSettings,
)
ConsumerChange = change_body(
    "ConsumerChange",
    "Settings of a consumer to change. null puts a setting back to none; what is left out stays.",
    changeable(CONSUMER),
    push=PushChange,
)


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


class ToCheck(Body):
    """A database whose tables could be read."""

    url: PostgresUrl
    tables: TableNames
    publication: Identifier | None = None
    slot: Identifier | None = None


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


class ToRestart(Body):
    """How a source is read anew whose slot is lost: with all rows, and with a delete for each that is gone."""

    url: PostgresUrl | None = None
    backfill: bool = True
    deletions: bool = True


class RemovedSource(Body):
    """How a source is removed: `forget` leaves its slot and publication where they are."""

    forget: bool = False


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


class ToReceive(Body):
    """What a worker has finished, settled in the same call. `whole_deliveries` is explained at ToAck."""

    ack_ids: Annotated[list[AckId], Meta(max_length=10_000)] = msgspec.field(default_factory=list)
    whole_deliveries: bool = False


class ToAck(Body):
    """Messages that are done.

    `whole_deliveries`: an ack_id without its last number stands for all that came with it. For callers who receive with
    a `worker` of their own: others may share deliveries.
    """

    ack_ids: AckIds
    whole_deliveries: bool = False


class ToRelease(Body):
    """Messages that were not worked on."""

    ack_ids: AckIds
    whole_deliveries: bool = False


class ToNack(Body):
    """Messages that failed."""

    ack_ids: AckIds
    whole_deliveries: bool = False
    delay_ms: Milliseconds | None = None
    error: Text | None = None


class ToExtend(Body):
    """Messages that take longer, or less long: their deadline is so long from now.

    0 makes them visible at once, which counts as an attempt.
    """

    ack_ids: AckIds
    by_ms: Milliseconds
    whole_deliveries: bool = False


class ToJoin(Body):
    """A worker of a leased consumer, by a name that no other one has."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]


class ToSeek(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Seq | Text


class Limits(Body):
    """Limits of one channel to change. null puts a limit back to the consumer's own; what is left out stays."""

    max_concurrency: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    release_interval_ms: Milliseconds | UnsetType | None = UNSET


class ChosenDead(Body):
    """Which dead letters: those that fit all of what is given, the oldest first, or, asked for by name, all."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    filter: Filter | Text | None = None
    limit: Count | None = None
    all: bool = False


class ToDiscard(Body):
    """Which messages to give up: those that fit all of what is given, or all.

    `go_on`, with the same other fields, is what the step before answered as `more`.
    """

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    filter: Filter | Text | None = None
    channel: Text | None = None
    older_than_ms: Annotated[int, Meta(ge=0, le=1_000_000_000_000)] | None = None
    all: bool = False
    go_on: Text | None = None


class ToRetry(Body):
    """Which parked messages are due now: these seqs, or, asked for by name, all."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    all: bool = False


class ToReplay(Body):
    """Which messages to hand out again. What is given must all hold; `from_seq` 1 means all there are.

    Sent at `from_time` or later, and before `to_time`.
    """

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    from_seq: Seq | None = None
    to_seq: Seq | None = None
    from_time: Moment | None = None
    to_time: Moment | None = None
    filter: Filter | Text | None = None


class NewToken(Body):
    """A token to make. Without `streams` it is for all of them; their patterns are written like key filters."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Literal["admin", "produce", "consume", "monitor"]], Meta(min_length=1, max_length=4)]
    streams: Filter | None = None
    rate_limit: Count | None = None
    lifetime_ms: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] | None = None


class MessagesQuery(Body):
    """Which messages of a stream."""

    limit: Limit = 10
    sort: Sort = "seq_asc"
    key_pattern: Text | None = None
    before: Seq | None = None
    after: Seq | None = None


class PeekQuery(Body):
    """Which messages of a consumer: in some `states` (with commas between them), or as `visible` says.

    `visible`: those that could be received now, or (false) those that could not.
    """

    limit: Limit = 10
    sort: Sort = "seq_asc"
    states: Annotated[str, Meta(max_length=100, pattern="^[a-z]+(,[a-z]+)*$")] | None = None
    visible: bool | None = None
    before: Seq | None = None
    after: Seq | None = None


class ReceiveQuery(Body):
    """How many messages, how long to wait for the first one, for whom (where lanes are leased), and for how long."""

    batch_size: Limit = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    worker: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    ack_wait_ms: Milliseconds | None = None


class PageQuery(Body):
    """How many, and after which."""

    limit: Limit = 100
    after: Seq = 0


class ChannelQuery(Body):
    """How many channels, in which order, and after which: `next` of the page before."""

    limit: Limit = 100
    sort: Literal["waiting", "oldest", "name"] = "waiting"
    after: Annotated[str, Meta(min_length=1, max_length=3000)] | None = None


class AttemptsQuery(Body):
    """Of which message, of which consumer; how many, and before which id."""

    seq: Seq | None = None
    consumer: Name | None = None
    limit: Limit = 100
    before: Seq | None = None


class DoctorQuery(Body):
    """What is reported lasts longer than this. Where it is not given: five minutes."""

    patience_ms: Milliseconds | None = None


class AuditQuery(Body):
    """How many, and before which."""

    limit: Limit = 100
    before: Seq | None = None


class OverviewQuery(Body):
    """Which streams and consumers: with this in their names; how many, after how many, in which order."""

    search: Annotated[str, Meta(max_length=200)] | None = None
    sort: Literal["trouble", "name", "lag", "age", "rate", "dead"] = "trouble"
    limit: Limit = 100
    after: Seq = 0


class HistoryQuery(Body):
    """Of how long: up to a day is kept."""

    minutes: Annotated[int, Meta(ge=1, le=1500)] = 60


class PositionQuery(Body):
    """Where: beginning, end, a seq, or a time."""

    at: Text


class SeekQuery(Body):
    """Where to go: beginning, end, a seq, or a time."""

    to: Text
