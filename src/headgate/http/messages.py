"""Sending, receiving and settling; looking at messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from ..database import statements
from ..errors import InvalidAckId, InvalidArgument
from . import responses
from .request import CALLS, Call, Made, Request, call, consumer_path, given, listing, look, milliseconds, path

MOST_SENT = 10_000  # messages of one request
MOST_IDS = 10_000  # ack_ids of one request
MOST_RECEIVED = 1000  # messages of one request
_ACK_ID = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?")
LONGEST_POLL = 20.0  # seconds that one request waits: less than what proxies have patience for


class Outgoing(Struct, omit_defaults=True):
    """A message to send."""

    data: Raw | str
    key: str | None = None
    headers: Raw | None = None
    channel: str | None = None
    delay_ms: int | None = None
    id: str | None = None
    deliver_at: str | None = None


def receive(stream: str, params: Sequence[Any], wait: float) -> Request:
    """Receives, as the function that is generated for the stream does; the server waits for the first message."""
    consumer, batch_size, worker, acks, *ack_wait = params
    wait = min(wait, LONGEST_POLL)
    query = {"batch_size": min(batch_size, MOST_RECEIVED), "wait_ms": round(wait * 1000), "worker": worker}
    if ack_wait:
        query["ack_wait_ms"] = milliseconds(ack_wait[0])
    return Request(
        "POST", consumer_path(stream, consumer, "receive"), responses.rows, list[responses.ReceivedMessage], query,
        _ids(acks) if acks else {}, is_safe=True, wait=wait,
    )  # fmt: skip


@call(statements.SEND_BATCH)
@call(statements.SEND_BATCH_AT)
def _send(stream: str, datas: list[str], keys: Any, headers: Any, channels: Any, delays: Any, ids: Any) -> Made:
    if not datas:
        return [([],)]
    if len(datas) > MOST_SENT:
        raise InvalidArgument(f"{len(datas)} messages in one batch", hint="send at most 10,000 messages in a call")
    none = [None] * len(datas)
    messages = []
    columns = zip(datas, keys or none, headers or none, channels or none, delays or none, ids or none, strict=True)
    for text, key, header, channel, delay, id in columns:
        about = None if header is None else Raw(header.encode())
        at = delay.removeprefix(statements.AT) if delay and delay.startswith(statements.AT) else None
        wait = max(0, milliseconds(delay) or 0) if at is None and delay else None  # one that is over is none
        messages.append(Outgoing(responses.from_text(text, about), key, about, channel, wait, id, at))
    return Request(
        "POST", path("streams", stream, "messages"), responses.counts("seqs"), body={"messages": messages},
        is_safe=ids is not None and None not in ids,
    )  # fmt: skip


def _ids(ids: Sequence[str]) -> dict[str, Any]:
    """Ack_ids. Those of whole deliveries are this worker's own: it has received them by its name."""
    for id in ids:
        if not _ACK_ID.fullmatch(id):
            raise InvalidAckId(f'"{id[:100]}" is not an ack_id', hint="pass ack_ids as receive returned them")
    is_whole = any(id.count(".") == 1 for id in ids)
    return {"ack_ids": list(ids), **({"whole_deliveries": True} if is_whole else {})}


def _settle(action: str, done: str, *names: str) -> Call:
    def call(stream: str, consumer: str, ids: Sequence[str], *values: Any) -> Made:
        body = _ids(ids) | given(**dict(zip(names, values, strict=True)))
        for name in ("delay_ms", "by_ms"):
            if name in body:
                body[name] = milliseconds(body[name])
        return Request("POST", consumer_path(stream, consumer, action), responses.counts(done, "stale"), body=body)

    return call


CALLS[statements.ACK] = CALLS[statements.ACK_RELAXED] = _settle("ack", "acked")
CALLS[statements.NACK] = CALLS[statements.NACK_RELAXED] = _settle("nack", "nacked", "delay_ms", "error")
CALLS[statements.RELEASE] = _settle("release", "released")
CALLS[statements.EXTEND] = _settle("extend", "extended", "by_ms")
SETTLING = {
    statements.ACK, statements.ACK_RELAXED, statements.NACK, statements.NACK_RELAXED, statements.RELEASE,
    statements.EXTEND,
}  # fmt: skip


@call(statements.MESSAGES)
def _messages(stream: str, limit: int, newest: bool, filter: Any, before: int | None, after: int | None) -> Made:
    if filter is not None and len(filter) != 1:
        raise InvalidArgument("messages are listed by one filter over HTTP", hint="call once for each filter")
    query = _range(limit, newest, before, after) | given(key_pattern=filter and filter[0])
    return look(path("streams", stream, "messages"), responses.stored, list[responses.Message], query)


@call(statements.PEEK)
def _peek(
    stream: str, consumer: str, limit: int, newest: bool, states: Any, before: int | None, after: int | None
) -> Made:
    if states is not None and not states:
        return []
    query = _range(limit, newest, before, after) | given(states=states and ",".join(states))
    return look(consumer_path(stream, consumer, "messages"), responses.peeked, list[responses.Peeked], query)


@call(statements.MESSAGE_STATES)
def _message_states(stream: str, seq: int) -> Made:
    return look(
        path("streams", stream, "messages", seq), responses.states, responses.States, missing="message_not_found"
    )


@call(statements.MESSAGE_LIFE)
def _message_life(stream: str, seq: int) -> Made:
    return look(path("streams", stream, "messages", seq, "life"), responses.LIFE, missing="message_not_found")


@call(statements.ATTEMPTS)
def _attempts(stream: str, seq: int | None, consumer: str | None, limit: int, before: int | None) -> Made:
    query = listing(limit, seq=seq, consumer=consumer, before=before)
    return look(path("streams", stream, "attempts"), responses.ATTEMPTS, query=query)


@call(statements.DEAD_LETTERS)
def _dead_letters(stream: str, consumer: str, limit: int, after: int) -> Made:
    query = listing(limit, after=after)
    return look(consumer_path(stream, consumer, "dead"), responses.rows, list[responses.Dead], query)


@call(statements.DEAD_OF_GROUP)
def _dead_of_group(stream: str, consumer: str, group: str, limit: int, after: int) -> Made:
    query = listing(limit, after=after, group=group)
    return look(consumer_path(stream, consumer, "dead"), responses.rows, list[responses.Dead], query)


def _range(limit: int, newest: bool, before: int | None, after: int | None) -> dict[str, Any]:
    return listing(limit, sort="seq_desc" if newest else "seq_asc", before=before, after=after)
