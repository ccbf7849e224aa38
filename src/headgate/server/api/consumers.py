"""Consumers: make, list, look at, change, drop, pause, move; their messages and channels."""

from __future__ import annotations

from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from msgspec import UNSET

from ...settings import CONSUMER
from ...types import Push, State
from ..http.call import Call
from ..http.errors import Problem
from ..http.routing import Routes
from ..push.addresses import Refused
from .answers import Channel, Consumer, ConsumerSettings, Nothing, milliseconds
from .answers_messages import DiscardedSome, Peeked
from .fields import changes, seconds, settings_of
from .requests import (
    ChannelQuery,
    ConsumerChange,
    Limits,
    NewConsumer,
    PeekQuery,
    PushChange,
    PushSettings,
    ToDiscard,
    ToSeek,
)

routes = Routes()

CONSUMERS_PATH = "/api/streams/{stream}/consumers"
CONSUMER_PATH = CONSUMERS_PATH + "/{consumer}"
VISIBLE: tuple[Literal["available"]] = ("available",)


@routes.route("POST", CONSUMERS_PATH, scope="admin", body=NewConsumer, answer=Consumer, status=201)
async def create_consumer(call: Call) -> Consumer:
    """Makes a consumer."""
    new = call.body
    settings = {**settings_of(new, CONSUMER), "push": _push(call, new.push)}
    stream = call.server.stream(call.stream)
    made = await stream.consumer(new.name, create=True, exist_ok=new.if_not_exists, **settings)
    call.server.altered(call.stream, new.name)
    return Consumer.of(await made.info())


def _push(call: Call, given: PushSettings | PushChange | None) -> Push | None:
    """The settings as the SDK takes them. What this server would never post to is refused before it is stored."""
    if given is None:
        return None
    found = {n: getattr(given, n) for n in given.__struct_fields__ if getattr(given, n) is not UNSET}
    if "timeout_ms" in found:
        found["timeout"] = found.pop("timeout_ms") / 1000
    if "url" in found:
        try:
            call.server.pushing.guard.check_literal(urlsplit(found["url"]).hostname or "")
        except (Refused, ValueError):
            raise Problem(
                422, "invalid_argument", "this server does not post to that address",
                "give a public host; `headgate up --push-allow` lets others be used",
            ) from None  # fmt: skip
    return cast(Push, found)


@routes.route("GET", CONSUMERS_PATH, scope="monitor", answer=list[Consumer])
async def list_consumers(call: Call) -> list[Consumer]:
    """The consumers of a stream."""
    return [Consumer.of(c) for c in await call.server.hg.insights.consumers(call.stream)]


@routes.route("GET", CONSUMER_PATH, scope="monitor", answer=Consumer)
async def get_consumer(call: Call) -> Consumer:
    """One consumer."""
    return Consumer.of(await call.server.hg.insights.consumer(call.stream, call.consumer))


@routes.route("GET", CONSUMER_PATH + "/settings", scope="any", answer=ConsumerSettings)
async def get_consumer_settings(call: Call) -> ConsumerSettings:
    """What a worker needs to know of its consumer."""
    c = await call.server.consumer(call.stream, call.consumer)
    return ConsumerSettings(
        c.order,
        milliseconds(c.ack_wait),
        c.backoff,
        c.leased,
        milliseconds(c.lease_time),
        c.slot_modulus,
        c.max_waiting,
    )


@routes.route("PATCH", CONSUMER_PATH, scope="admin", body=ConsumerChange, answer=Consumer)
async def change_consumer(call: Call) -> Consumer:
    """Changes settings of a consumer."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    given = changes(call.body)
    if "push" in given:
        given["push"] = _push(call, call.body.push)
    await consumer.alter(**given)
    call.server.altered(call.stream, call.consumer)
    return Consumer.of(await consumer.info())


@routes.route("DELETE", CONSUMER_PATH, scope="admin", answer=Nothing)
async def drop_consumer(call: Call) -> Nothing:
    """Removes a consumer and its progress. Its dead letters stay."""
    await (await call.server.consumer(call.stream, call.consumer)).drop()
    call.server.altered(call.stream, call.consumer)
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/pause", scope="admin", answer=Nothing)
async def pause_consumer(call: Call) -> Nothing:
    """Receives nothing until it is resumed."""
    await (await call.server.consumer(call.stream, call.consumer)).pause()
    call.server.pushing.changed()
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/resume", scope="admin", answer=Nothing)
async def resume_consumer(call: Call) -> Nothing:
    """Receives again."""
    await (await call.server.consumer(call.stream, call.consumer)).resume()
    call.server.polling.stirred(call.stream, call.consumer)
    call.server.pushing.changed()
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/seek", scope="admin", body=ToSeek, answer=Nothing)
async def seek_consumer(call: Call) -> Nothing:
    """Moves a consumer to the beginning, the end, a seq or a time."""
    await (await call.server.consumer(call.stream, call.consumer)).seek(call.body.to)
    call.server.polling.stirred(call.stream, call.consumer)
    return Nothing()


@routes.route("POST", CONSUMER_PATH + "/discard", scope="admin", body=ToDiscard, answer=DiscardedSome)
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
    call.server.polling.stirred(call.stream, call.consumer, done.discarded)
    return DiscardedSome(done.discarded, done.held, done.more)


@routes.route("GET", CONSUMER_PATH + "/messages", scope="monitor", query=PeekQuery, answer=list[Peeked], has_next=True)
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
    return [Peeked.of(m) for m in found]


@routes.route(
    "GET", CONSUMER_PATH + "/channels", scope="monitor", query=ChannelQuery, answer=list[Channel],
    has_next=True, next_type="string",
)  # fmt: skip
async def list_channels(call: Call) -> list[Channel]:
    """What waits in each channel of a consumer, since when, and its limits. With `next`, go on there (after)."""
    q: ChannelQuery = call.query
    found = await call.server.hg.insights.channels(
        call.stream, call.consumer, None, q.limit, sort=q.sort, after=q.after
    )
    call.next = found.next
    return [Channel.of(c) for c in found]


@routes.route("GET", CONSUMER_PATH + "/channels/{channel}", scope="monitor", answer=Channel)
async def get_channel(call: Call) -> Channel:
    """One channel of a consumer."""
    found = await call.server.hg.insights.channels(call.stream, call.consumer, call.path["channel"], 1)
    if not found:
        raise Problem(404, "channel_not_found", "nothing is known of this channel", "it has no limits and no messages")
    return Channel.of(found[0])


@routes.route("PUT", CONSUMER_PATH + "/channels/{channel}", scope="admin", body=Limits, answer=Channel)
async def set_channel(call: Call) -> Channel:
    """Changes the limits of a channel."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    await consumer.set_channel(call.path["channel"], **changes(call.body))
    call.server.polling.stirred(call.stream, call.consumer)
    for found in await consumer.channels(call.path["channel"], 1):
        return Channel.of(found)
    # without limits of its own and without messages, nothing is kept of it
    return Channel(call.stream, call.consumer, call.path["channel"], "idle", 0, 0, None, None, 0, None)
