"""Receiving and settling."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import datetime
from time import perf_counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ... import tracing
from ...aio import AsyncConsumer, AsyncMessage
from ...errors import Error, InvalidArgument
from ..flow.polling import Key
from ..http.errors import Problem
from ..http.payload import to_json
from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import AckId, AckIds, Body, Limit, Milliseconds, Text, seconds

routes = Routes()


class ReceiveQuery(Body):
    """How many messages, how long to wait for the first one, for whom (where lanes are leased), and for how long."""

    batch_size: Limit = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    worker: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    ack_wait_ms: Milliseconds | None = None


class Message(Struct):
    """A message as it was sent."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    channel: str | None
    created_at: datetime


class ReceivedMessage(Struct):
    """A message that was received: it is to be settled by its ack_id."""

    ack_id: str
    message: Message
    attempt: int


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


class Acked(Struct):
    """How many messages were acked; how many ack_ids were stale: settled before, or taken back."""

    acked: int
    stale: int


class ToNack(Body):
    """Messages that failed."""

    ack_ids: AckIds
    whole_deliveries: bool = False
    delay_ms: Milliseconds | None = None
    error: Text | None = None


class Nacked(Struct):
    """How many messages were nacked; how many ack_ids were stale."""

    nacked: int
    stale: int


class ToRelease(Body):
    """Messages that were not worked on."""

    ack_ids: AckIds
    whole_deliveries: bool = False


class Released(Struct):
    """How many messages were handed back; how many ack_ids were stale."""

    released: int
    stale: int


class ToExtend(Body):
    """Messages that take longer, or less long: their deadline is so long from now.

    0 makes them visible at once, which counts as an attempt.
    """

    ack_ids: AckIds
    by_ms: Milliseconds
    whole_deliveries: bool = False


class Extended(Struct):
    """How many messages have their new deadline; how many ack_ids were stale."""

    extended: int
    stale: int


LONGEST_ACK_WAIT = 7 * 24 * 3600 * 1000  # milliseconds
_MESSAGE = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}")
_MESSAGE_OR_DELIVERY = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(\.[0-9]{1,18})?")


@routes.route("GET", CONSUMER_PATH + "/receive", scope="consume", query=ReceiveQuery, response=list[ReceivedMessage])
async def receive(call: Call) -> list[ReceivedMessage]:
    """Up to `batch_size` messages; waits up to `wait_ms` for the first one.

    They are the caller's for `ack_wait_ms`, or the consumer's ack_wait.
    """
    return await _receive(call, [])


@routes.route(
    "POST", CONSUMER_PATH + "/receive", scope="consume", query=ReceiveQuery, body=ToReceive, body_optional=True,
    response=list[ReceivedMessage],
)  # fmt: skip
async def ack_and_receive(call: Call) -> list[ReceivedMessage]:
    """Acks what is done and receives the next messages in one call."""
    return await _receive(call, ours(call.body)[0])


@routes.route("POST", CONSUMER_PATH + "/ack", scope="consume", body=ToAck, response=Acked)
async def ack(call: Call) -> Acked:
    """Done with these messages."""
    ids, foreign = ours(call.body)
    acked = stale = 0
    if ids:
        acked, stale = await call.server.batching.ack(call.stream, call.consumer, ids)
    else:
        await call.server.consumer(call.stream, call.consumer)
    await _settled(call, "acked", acked)
    return Acked(acked, stale + foreign)


@routes.route("POST", CONSUMER_PATH + "/nack", scope="consume", body=ToNack, response=Nacked)
async def nack(call: Call) -> Nacked:
    """Not done with these messages: they come again after the delay, or the consumer's backoff."""
    ids, foreign = ours(call.body)
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.nack(ids, delay=seconds(call.body.delay_ms), error=call.body.error)
    await _settled(call, "nacked", done.settled)
    return Nacked(done.settled, done.stale + foreign)


@routes.route("POST", CONSUMER_PATH + "/release", scope="consume", body=ToRelease, response=Released)
async def release(call: Call) -> Released:
    """Hands back messages that were not worked on: they are due at once, and the delivery does not count."""
    ids, foreign = ours(call.body)
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.release(ids)
    call.server.polling.may_have_work(call.stream, call.consumer, done.settled)
    return Released(done.settled, done.stale + foreign)


@routes.route("POST", CONSUMER_PATH + "/extend", scope="consume", body=ToExtend, response=Extended)
async def extend(call: Call) -> Extended:
    """Moves the deadline of these messages alone to so long from now, also nearer; 0 makes them visible at once."""
    ids, foreign = ours(call.body)
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.extend(ids, call.body.by_ms / 1000)
    if done.settled and not call.body.by_ms:
        call.server.polling.may_have_work(call.stream, call.consumer, done.settled, likely=True)
    return Extended(done.settled, done.stale + foreign)


def ours(body: ToReceive | ToAck | ToNack | ToRelease | ToExtend) -> tuple[list[str], int]:
    """Those that can be ack_ids, and how many cannot: these are stale.

    (The first two parts name a whole delivery. Several callers may share it, unless each said who it is.)
    """
    form = _MESSAGE_OR_DELIVERY if body.whole_deliveries else _MESSAGE
    found = [id for id in body.ack_ids if form.fullmatch(id)]
    return found, len(body.ack_ids) - len(found)


async def _settled(call: Call, what: str, count: int) -> None:
    call.server.metrics.count(what, call.stream, call.consumer, count)
    if count:
        # A key or a channel may go on, or what was nacked comes again. Otherwise an ack makes nothing available, unless
        # the consumer had as many messages in flight as it may.
        consumer = await call.server.consumer(call.stream, call.consumer)
        likely = what == "nacked" or consumer.order == "key" or consumer.has_named_lanes
        call.server.polling.may_have_work(call.stream, call.consumer, count, likely=likely)


async def _receive(call: Call, acks: list[str]) -> list[ReceivedMessage]:
    q: ReceiveQuery = call.query
    consumer = await call.server.consumer(call.stream, call.consumer)
    polling = call.server.polling
    key = _key(consumer, q)
    if q.ack_wait_ms is not None and not 0 < q.ack_wait_ms <= LONGEST_ACK_WAIT:  # now, not when there is a message
        raise InvalidArgument(
            f"ack_wait_ms {q.ack_wait_ms} is not possible", hint="choose more than 0 and at most 7 days"
        )
    # Where others wait already there is nothing, and they come first.
    looks = bool(acks) or not q.wait_ms or not polling.is_waited_for(call.stream, key)
    mark = polling.mark(call.stream, key, looks=looks)
    messages: list[AsyncMessage] = []
    if looks:
        messages, acked = await call.server.batching.receive(
            consumer, q.batch_size, acks, q.worker, seconds(q.ack_wait_ms)
        )
        if acks:
            await _settled(call, "acked", acked)
    if not messages and q.wait_ms:
        messages = await _wait(call, consumer, mark)
    if messages and call.is_gone:  # nobody is there to take them: others get them now, not at the deadline
        with suppress(Error):
            await consumer.release(messages)
        polling.may_have_work(call.stream, call.consumer)
        return []
    call.server.metrics.count("delivered", call.stream, call.consumer, len(messages))
    if messages:
        first = (m.created_at for m in messages if m.attempt == 1)
        call.server.metrics.delivered(call.stream, call.consumer, first)
        tracing.link(m.headers for m in messages)
    if len(messages) == q.batch_size:  # there may be more
        polling.may_have_work(call.stream, call.consumer)
    return [
        ReceivedMessage(
            m.ack_id, Message(m.seq, m.key, to_json(m.text, m.headers), m.headers, m.channel, m.created_at), m.attempt
        )
        for m in messages
    ]


def _key(consumer: AsyncConsumer, q: ReceiveQuery) -> Key:
    """Who waits for the same: all who ask a consumer, but where lanes are leased each worker has its own."""
    return consumer.name, q.worker if consumer.leased else None


async def _wait(call: Call, consumer: AsyncConsumer, mark: int) -> list[AsyncMessage]:
    """Waits without a connection, and not as work: neither the limit of time nor that of requests counts meanwhile."""
    q: ReceiveQuery = call.query
    server, loop = call.server, asyncio.get_running_loop()
    polling, key = server.polling, _key(consumer, q)
    until = loop.time() + q.wait_ms / 1000
    messages: list[AsyncMessage] = []
    place = (call.stream, call.consumer)
    server.waiting_at.enter(place, consumer.max_waiting)
    try:
        server.waiting.enter()
    except Problem:
        server.waiting_at.leave(place)
        raise
    server.in_work.leave()
    try:
        while not messages and (left := until - loop.time()) > 0:
            began = perf_counter()
            if call.limit is not None:
                call.limit.pause()
            woken = await polling.wait(call.stream, key, q.batch_size, mark, left, call.gone)
            call.waited += perf_counter() - began
            if not woken:
                break
            if call.limit is not None:
                call.limit.start()
            await call.check_again()
            mark = polling.mark(call.stream, key)
            messages, _ = await server.batching.receive(consumer, q.batch_size, [], q.worker, seconds(q.ack_wait_ms))
    finally:
        server.waiting.leave()
        server.waiting_at.leave(place)
        server.in_work.now += 1  # it is answered at once: not a moment to refuse it
    return messages
