"""Messages that a consumer is to get again, or now."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import Body, Filter, Moment, Seq, Text, seconds

routes = Routes()


class ToRetry(Body):
    """Which parked messages are due now: these seqs, or, asked for by name, all."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000)] | None = None
    all: bool = False


class Retried(Struct):
    """How many parked messages are due now."""

    retried: int


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


class Replayed(Struct):
    """How many messages come again. `next_seq`: that was not all, go on with it as `from_seq`.

    `not_found`: seqs whose messages were removed. `passed_over`: in flight or parked already, not read yet, not let
    through by the consumer's filter, or superseded.
    """

    replayed: int
    not_found: int
    passed_over: int
    next_seq: int | None


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


class DiscardedSome(Struct):
    """How many messages were discarded, how many an open transaction holds, and where to go on (null: that was all)."""

    discarded: int
    held: int
    more: str | None


@routes.route("POST", CONSUMER_PATH + "/retry", scope="admin", body=ToRetry, response=Retried)
async def retry_messages(call: Call) -> Retried:
    """Makes parked messages due at once: these seqs, or `{"all": true}`."""
    chosen: ToRetry = call.body
    consumer = await call.server.consumer(call.stream, call.consumer)
    count = await consumer.retry_now(chosen.seqs, all=chosen.all)
    call.server.polling.may_have_work(call.stream, call.consumer, count)
    return Retried(count)


@routes.route("POST", CONSUMER_PATH + "/replay", scope="admin", body=ToReplay, response=Replayed)
async def replay_messages(call: Call) -> Replayed:
    """Hands messages to a consumer again, which does not move; at most 10,000 a call."""
    chosen: ToReplay = call.body
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.replay(
        seqs=chosen.seqs,
        from_seq=chosen.from_seq,
        to_seq=chosen.to_seq,
        from_time=chosen.from_time,
        to_time=chosen.to_time,
        filter=chosen.filter,
    )
    call.server.polling.may_have_work(call.stream, call.consumer, done.replayed)
    return Replayed(done.replayed, done.not_found, done.passed_over, done.next_seq)


@routes.route("POST", CONSUMER_PATH + "/discard", scope="admin", body=ToDiscard, response=DiscardedSome)
async def discard_messages(call: Call) -> DiscardedSome:
    """Gives up messages that are unread, delayed, parked or in flight, up to 10,000 a call. With `more`, go on."""
    which: ToDiscard = call.body
    consumer = await call.server.consumer(call.stream, call.consumer)
    done = await consumer.discard_some(
        which.seqs,
        filter=which.filter,
        channel=which.channel,
        older_than=seconds(which.older_than_ms),
        all=which.all,
        go_on=which.go_on,
    )
    call.server.polling.may_have_work(call.stream, call.consumer, done.discarded)
    return DiscardedSome(done.discarded, done.held, done.more)
