"""Messages of a stream: send, look."""

from __future__ import annotations

from ... import tracing
from ...database.encoding import dump_json
from ...database.parameters import as_delay
from ...errors import InvalidText
from ..flow.batching import Sending
from ..http.call import Call
from ..http.errors import Problem
from ..http.payload import to_text
from ..http.routing import Routes
from .answers_messages import ConsumerState, FailedAttempt, Happening, MessageWithStates, Published, Stored
from .fields import MOST_SEQ
from .requests import AttemptsQuery, MessagesQuery, NewMessage, NewMessages

routes = Routes()

NOT_FOUND = Problem(404, "message_not_found", "the stream has no such message", "it may have been removed")


@routes.route("POST", "/api/streams/{stream}/messages", scope="produce", body=NewMessages, answer=Published)
async def send_messages(call: Call) -> Published:
    """Sends messages, all or none; answers once they are on disk."""
    seqs = await call.server.batching.send(call.stream, columns(call.body, call.trace))
    return Published(len(seqs), seqs)


@routes.route("GET", "/api/streams/{stream}/messages", scope="monitor", query=MessagesQuery, answer=list[Stored])
async def list_messages(call: Call) -> list[Stored]:
    """Messages of a stream, whoever has read them."""
    q: MessagesQuery = call.query
    found = await call.server.stream(call.stream).messages(
        q.limit, newest_first=q.sort == "seq_desc", filter=q.key_pattern, before=q.before, after=q.after
    )
    return [Stored.of(m) for m in found]


@routes.route("GET", "/api/streams/{stream}/messages/{seq}", scope="monitor", answer=MessageWithStates)
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
    return MessageWithStates(Stored.of(found[0]), [ConsumerState.of(s) for s in states])


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
