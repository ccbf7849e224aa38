"""Messages of a stream: send, look."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any

from ... import tracing
from ...database import statements
from ...database.drivers import Array
from ...database.encoding import decode, dump_json
from ...database.parameters import as_delay
from ...errors import InvalidText
from ...types import StoredMessage
from ..flow.batching import Sending
from ..flow.searching import search
from ..http.call import Call
from ..http.errors import Problem
from ..http.payload import to_text
from ..http.routing import Routes
from .answers_messages import ConsumerState, FailedAttempt, Happening, MessageWithStates, Published, Stored, Tried
from .payloads import Eyes
from .requests import MOST_SEQ, NewMessage, NewMessages
from .requests_looking import AttemptsQuery, FilterQuery, MessageQuery, MessagesQuery

routes = Routes()

LARGE = 65_536  # bytes of data that are fetched whole

NOT_FOUND = Problem(404, "message_not_found", "the stream has no such message", "it may have been removed")


@routes.route("POST", "/api/streams/{stream}/messages", scope="produce", body=NewMessages, answer=Published)
async def send_messages(call: Call) -> Published:
    """Sends messages, all or none; answers once they are on disk."""
    seqs = await call.server.batching.send(call.stream, columns(call.body, call.trace))
    return Published(len(seqs), seqs)


@routes.route(
    "GET", "/api/streams/{stream}/messages", scope="monitor", query=MessagesQuery, answer=list[Stored], has_next=True
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
        return [eyes.stored(m) for m in await look(q.limit, before, after)]
    wanted = q.text.lower()
    found, call.next = await search(look, eyes.text, wanted, q.limit, backward, before, after)
    return [eyes.stored(m) for m in found]


async def _cut(call: Call, eyes: Eyes, which: tuple[Any, ...]) -> list[Stored]:
    """Messages of which large data is cut in the database already: a page of them could be gigabytes."""
    most = max(eyes.limit or 0, LARGE)
    rows = await call.server.hg.run(statements.MESSAGES_CUT, (most, eyes.limit, most, *which))
    return [
        eyes.beginning(*row)
        if row[6] is not None
        else eyes.stored(StoredMessage(row[0], row[1], decode(row[2], row[3]), *row[3:6]))
        for row in rows
    ]


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
    "GET", "/api/streams/{stream}/messages/{seq}", scope="monitor", query=MessageQuery, answer=MessageWithStates
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
    return MessageWithStates(Eyes.of(call).stored(found[0]), [ConsumerState.of(s) for s in states])


@routes.route("GET", "/api/streams/{stream}/messages/{seq}/life", scope="monitor", answer=list[Happening])
async def get_message_life(call: Call) -> list[Happening]:
    """Everything that is known of one message, in the order of time; what is so now comes last."""
    found = await call.server.hg.insights.message_life(call.stream, min(seq_of(call), MOST_SEQ))
    if not found:
        raise NOT_FOUND
    return [Happening.of(e) for e in found]


@routes.route("GET", "/api/streams/{stream}/attempts", scope="monitor", query=AttemptsQuery, answer=list[FailedAttempt])
async def list_attempts(call: Call) -> list[FailedAttempt]:
    """Attempts that failed, the newest first. The last 20 of a message and 100,000 of a stream are kept."""
    q: AttemptsQuery = call.query
    found = await call.server.hg.insights.attempts(
        call.stream, q.seq, consumer=q.consumer, limit=q.limit, before=q.before
    )
    return [FailedAttempt.of(a) for a in found]


@routes.route("GET", "/api/streams/{stream}/filter", scope="monitor", query=FilterQuery, answer=Tried)
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


def columns(body: NewMessages, trace: tracing.Carried | None = None) -> Sending:
    """The messages as the engine takes them. What is wrong with one is found here, before others share its commit."""
    messages = body.messages
    datas: list[str] = []
    headers: list[str | None] = []
    for m in messages:
        text, given = to_text(m.data, m.headers)
        given = tracing.carry(given, trace)
        datas.append(text)
        headers.append(dump_json(given) if given else None)
    return Sending(
        datas,
        _column([m.key for m in messages]),
        _column(headers),
        _column([m.channel for m in messages]),
        _column([_delay(m) for m in messages]),
        _column([m.id for m in messages]),
    )


def _delay(m: NewMessage) -> str | None:
    if m.deliver_at is not None:
        return as_delay(m.delay_ms, m.deliver_at)
    return None if m.delay_ms is None else f"{m.delay_ms} milliseconds"


def _column(values: list[str | None]) -> list[str | None] | None:
    """The values, if there are any."""
    if values.count(None) == len(values):
        return None
    if any(v is not None and "\x00" in v for v in values):
        raise InvalidText("a NUL character cannot be stored", hint="remove the NUL")
    return values
