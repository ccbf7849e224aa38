"""Messages of a stream: send, look."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Annotated, Any, Literal, cast, get_args

import msgspec
from msgspec import Meta, Struct

from ... import tracing
from ...database import statements
from ...database.columns import Array, Columns
from ...database.encoding import decode
from ...database.parameters import as_delay
from ...types import Attempt, LifeEvent, MessageState, PeekedMessage, State, StoredMessage
from ..flow.searching import search
from ..http.errors import Problem
from ..http.payload import to_text
from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import (
    MOST_SEQ,
    Body,
    DataLimit,
    Limit,
    Milliseconds,
    Moment,
    Name,
    Response,
    Search,
    Seq,
    Sort,
    Text,
    fields_of,
)
from .payloads import Eyes

routes = Routes()

LARGE = 65_536  # bytes of data that are fetched whole


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


class Published(Struct):
    """How many messages were sent, and their seqs in order."""

    published: int
    seqs: list[int]


class MessagesQuery(Body):
    """Which messages of a stream: with a `text` in data or headers, sent `since` or `until` a time.

    Of data that is longer than `data_limit` characters, so many come, as a string.
    """

    limit: Limit = 10
    sort: Sort = "seq_asc"
    key_pattern: Text | None = None
    text: Search | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Seq | None = None
    after: Seq | None = None
    data_limit: DataLimit | None = None


class Stored(fields_of(StoredMessage), Response, omit_defaults=True):  # type: ignore[misc]
    """A message as it lies in its stream. `cut`: the data is so long, and these are its first characters."""

    cut: int | None = None


class MessageQuery(Body):
    """How much of its data."""

    data_limit: DataLimit | None = None


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


class Happening(fields_of(LifeEvent), Response):  # type: ignore[misc]
    """Something that happened to a message, or (`at` is null) where it is now. `until`: a deadline, or when it is due.

    Of the message: sent, or gone. For a consumer: delivered, failed, expired, dead, redriven, replayed, discarded, and
    parked, delayed, blocked, released, waiting (not read yet), skipped (by the filter) or done.
    """


class AttemptsQuery(Body):
    """Of which message, of which consumer; how many, and before which id."""

    seq: Seq | None = None
    consumer: Name | None = None
    limit: Limit = 100
    before: Seq | None = None


class FailedAttempt(fields_of(Attempt), Response):  # type: ignore[misc]
    """An attempt that failed: nacked, or expired. `is_dead`: with it the message became a dead letter."""


class FilterQuery(Body):
    """Patterns of keys, with commas between them, to be tried on so many messages, the newest."""

    filter: Text
    limit: Limit = 1000


class Tried(Struct):
    """How many messages a filter let through, of how many; some keys that it did let through, and some others."""

    looked: int
    passed: int
    passing: list[str]
    others: list[str]


class PeekQuery(Body):
    """Which messages of a consumer: in some `states` (with commas between them), or as `visible` says.

    `visible`: those that could be received now, or (false) those that could not. `data_limit`: as in a stream's.
    """

    limit: Limit = 10
    sort: Sort = "seq_asc"
    states: Annotated[str, Meta(max_length=100, pattern="^[a-z]+(,[a-z]+)*$")] | None = None
    visible: bool | None = None
    before: Seq | None = None
    after: Seq | None = None
    data_limit: DataLimit | None = None


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
    def of(cls, m: PeekedMessage, eyes: Eyes) -> Peeked:
        """The response for what insights know, as the caller may see it."""
        stored = Stored(**{"seq": m.seq, "key": m.key, "deliver_at": None, "created_at": m.created_at, **eyes.look(m)})
        return cls(stored, m.state, m.attempt, m.visible_at, m.worker, m.reason, m.last_error)


NOT_FOUND = Problem(404, "message_not_found", "the stream has no such message", "it may have been removed")


@routes.route("POST", "/api/streams/{stream}/messages", scope="produce", body=NewMessages, response=Published)
async def send_messages(call: Call) -> Published:
    """Sends messages, all or none; answers once they are on disk."""
    seqs = await call.server.batching.send(call.stream, columns(call.body, call.trace))
    return Published(len(seqs), seqs)


@routes.route(
    "GET", "/api/streams/{stream}/messages", scope="monitor", query=MessagesQuery, response=list[Stored], has_next=True
)
async def list_messages(call: Call) -> list[Stored]:
    """Messages of a stream, whoever has read them. A search for a text that ends early has `next`."""
    q: MessagesQuery = call.query
    backward = q.sort == "seq_desc"
    before, after = await _between(call, q)
    eyes = Eyes.of(call)
    stream = call.server.stream(call.stream)

    def look(limit: int, before: int | None, after: int | None) -> Awaitable[list[StoredMessage]]:
        return stream.messages(limit, newest_first=backward, filter=q.key_pattern, before=before, after=after)

    if q.text is None and q.data_limit is not None:
        return await _cut(call, eyes, (call.stream, q.limit, backward, _patterns(q), before, after))
    if q.text is None:
        return [Stored.of(m, **eyes.look(m)) for m in await look(q.limit, before, after)]
    wanted = q.text.lower()
    found, call.next = await search(look, eyes.text, wanted, q.limit, backward, before, after)
    return [Stored.of(m, **eyes.look(m)) for m in found]


async def _cut(call: Call, eyes: Eyes, which: tuple[Any, ...]) -> list[Stored]:
    """Messages of which large data is cut in the database already: a page of them could be gigabytes."""
    most = max(eyes.limit or 0, LARGE)
    found = []
    for row in await call.server.hg.run(statements.MESSAGES_CUT, (most, eyes.limit, most, *which)):
        seq, key, text, headers, deliver_at, created_at, size = row
        if size is None:
            m = StoredMessage(seq, key, decode(text, headers), headers, deliver_at, created_at)
            found.append(Stored.of(m, **eyes.look(m)))
        else:
            part = eyes.look_at_part(text, headers, size)
            found.append(Stored(**{"seq": seq, "key": key, "deliver_at": deliver_at, "created_at": created_at, **part}))
    return found


def _patterns(q: MessagesQuery) -> Array | None:
    return None if q.key_pattern is None else Array([q.key_pattern])


async def _between(call: Call, q: MessagesQuery) -> tuple[int | None, int | None]:
    """The seqs before and after which the messages lie, its times among them."""
    before, after = q.before, q.after
    if q.since is not None:
        after = max(await _seq_at(call, q.since) - 1, after or 0)
    if q.until is not None:
        before = min(await _seq_at(call, q.until), MOST_SEQ if before is None else before)
    return before, after


async def _seq_at(call: Call, at: datetime) -> int:
    [(seq,)] = await call.server.hg.run(statements.SEQ_AT, (call.stream, at.isoformat()))
    return int(seq)


@routes.route(
    "GET", "/api/streams/{stream}/messages/{seq}", scope="monitor", query=MessageQuery, response=MessageWithStates
)  # fmt: skip
async def get_message(call: Call) -> MessageWithStates:
    """One message, and its state for each consumer."""
    seq = seq_of(call)
    insights = call.server.hg.insights
    found = []
    if 0 < seq <= MOST_SEQ:
        found = await insights.messages(call.stream, 1, after=seq - 1)
    else:
        await insights.stream(call.stream)
    if not found or found[0].seq != seq:
        raise NOT_FOUND
    states = await insights.message(call.stream, seq)
    return MessageWithStates(Stored.of(found[0], **Eyes.of(call).look(found[0])), [ConsumerState.of(s) for s in states])


@routes.route("GET", "/api/streams/{stream}/messages/{seq}/life", scope="monitor", response=list[Happening])
async def get_message_life(call: Call) -> list[Happening]:
    """Everything that is known of one message, in the order of time; what is so now comes last."""
    found = await call.server.hg.insights.message_life(call.stream, min(seq_of(call), MOST_SEQ))
    if not found:
        raise NOT_FOUND
    return [Happening.of(e) for e in found]


@routes.route(
    "GET", "/api/streams/{stream}/attempts", scope="monitor", query=AttemptsQuery, response=list[FailedAttempt]
)
async def list_attempts(call: Call) -> list[FailedAttempt]:
    """Attempts that failed, the newest first. The last 20 of a message and 100,000 of a stream are kept."""
    q: AttemptsQuery = call.query
    found = await call.server.hg.insights.attempts(
        call.stream, q.seq, consumer=q.consumer, limit=q.limit, before=q.before
    )
    return [FailedAttempt.of(a) for a in found]


@routes.route("GET", "/api/streams/{stream}/filter", scope="monitor", query=FilterQuery, response=Tried)
async def try_filter(call: Call) -> Tried:
    """What a filter would let through of a stream's newest messages."""
    q: FilterQuery = call.query
    patterns = Array([f.strip() for f in q.filter.split(",")])
    [row] = await call.server.hg.run(statements.TRY_FILTER, (call.stream, patterns, q.limit))
    return Tried(*row)


def seq_of(call: Call) -> int:
    """The seq in the path; -1 when it is none."""
    text = call.path["seq"]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def columns(body: NewMessages, trace: tracing.Carried | None = None) -> Columns:
    """The messages as the engine takes them. What is wrong with one is found here, before others share its commit."""
    made = Columns()
    for m in body.messages:
        text, headers = to_text(m.data, m.headers)
        made.add(text, m.key, headers, m.channel, _delay(m), m.id, trace)
    made.refuse_nul()
    return made


def _delay(m: NewMessage) -> str | None:
    if m.deliver_at is not None:
        return as_delay(m.delay_ms, m.deliver_at)
    return None if m.delay_ms is None else f"{m.delay_ms} milliseconds"


VISIBLE: tuple[Literal["available"]] = ("available",)


@routes.route(
    "GET", CONSUMER_PATH + "/messages", scope="monitor", query=PeekQuery, response=list[Peeked], has_next=True
)
async def peek_messages(call: Call) -> list[Peeked]:
    """Messages with their state for a consumer, without any effect. With `next`, go on there (after, or before)."""
    q: PeekQuery = call.query
    states = None if q.states is None else cast(list[State], q.states.split(","))
    if q.visible is not None:
        if states is not None:
            raise Problem(422, "invalid_argument", "states and visible both say which messages", "give one of them")
        states = [s for s in get_args(State) if (s in VISIBLE) == q.visible]
    found = await call.server.hg.insights.peek(
        call.stream, call.consumer, q.limit,
        newest_first=q.sort == "seq_desc", states=states, before=q.before, after=q.after,
    )  # fmt: skip
    call.next = found.next
    eyes = Eyes.of(call)
    return [Peeked.of(m, eyes) for m in found]
