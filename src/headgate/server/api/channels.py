"""Channels of a consumer: what waits in each, and their limits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ...types import ChannelInfo
from ..http.errors import Problem
from ..http.routing import Call, Routes
from .consumers import CONSUMER_PATH
from .fields import Body, Limit, Milliseconds, Response, changes, fields_of

routes = Routes()


class ChannelQuery(Body):
    """How many channels, in which order, and after which: `next` of the page before."""

    limit: Limit = 100
    sort: Literal["waiting", "oldest", "name"] = "waiting"
    after: Annotated[str, Meta(min_length=1, max_length=3000)] | None = None


class Limits(Body):
    """Limits of one channel to change. null puts a limit back to the consumer's own; what is left out stays."""

    max_concurrency: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    release_interval_ms: Milliseconds | UnsetType | None = UNSET


class Channel(fields_of(ChannelInfo), Response):  # type: ignore[misc]
    """A channel (or key, by the stream's lanes) of a consumer.

    What is `waiting` was counted when it is `exact`; the order comes from a sample unless it is `complete`.
    """


@routes.route(
    "GET", CONSUMER_PATH + "/channels", scope="monitor", query=ChannelQuery, response=list[Channel],
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


@routes.route("GET", CONSUMER_PATH + "/channels/{channel}", scope="monitor", response=Channel)
async def get_channel(call: Call) -> Channel:
    """One channel of a consumer."""
    found = await call.server.hg.insights.channels(call.stream, call.consumer, call.path["channel"], 1)
    if not found:
        raise Problem(404, "channel_not_found", "nothing is known of this channel", "it has no limits and no messages")
    return Channel.of(found[0])


@routes.route("PUT", CONSUMER_PATH + "/channels/{channel}", scope="admin", body=Limits, response=Channel)
async def set_channel(call: Call) -> Channel:
    """Changes the limits of a channel."""
    consumer = await call.server.consumer(call.stream, call.consumer)
    await consumer.set_channel(call.path["channel"], **changes(call.body))
    call.server.polling.may_have_work(call.stream, call.consumer)
    for found in await consumer.channels(call.path["channel"], 1):
        return Channel.of(found)
    # without limits of its own and without messages, nothing is kept of it
    return Channel.of(
        ChannelInfo(
            call.stream, call.consumer, call.path["channel"], "idle", 0, 0, None, None, 0, None, waiting=0, exact=True,
            oldest=None, delayed=0, complete=True,
        )
    )  # fmt: skip
