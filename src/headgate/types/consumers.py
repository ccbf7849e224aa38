"""Consumers: their settings and how far they are, channels and workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from ..settings import Order

ChannelSort = Literal["waiting", "oldest", "name"]


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer and how far it is. `unread` (and so `lag`) is counted when `exact`, otherwise estimated.

    `delivered` and `rate` are of first attempts, `redelivered` counts all others. `most_failures` is how often the
    message that failed most often has failed, of those that are not done; `due` how many parked ones could be handed
    out now; `lost` how many messages retention removed before the consumer was done with them. In a list of many,
    `unread`, `floor`, `oldest_unacked` and `dead` may be what maintenance saw at `sampled_at`; None: they are of now.
    """

    stream: str
    name: str
    filter: list[str] | None
    order: Order
    ack_wait: timedelta
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
    rate: float
    created_at: datetime
    lost: int
    max_concurrency: int | None
    release_interval: timedelta | None
    leased: bool
    lease_time: timedelta
    max_waiting: int | None
    push: dict[str, Any] | None  # secrets by their ends, headers by their names
    sampled_at: datetime | None = None
    redelivered: int = 0
    most_failures: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel (or key) of a consumer whose stream has named lanes, of which something is known, or waits.

    `waiting` is what is unread and what is parked, of which `delayed` is due later; `oldest` is when the oldest of it
    was sent. `exact` is false where `waiting` is an estimate. `complete` is false where the order (and which channels
    are shown that the consumer has not come to yet) comes from a sample of a large backlog.
    """

    stream: str
    consumer: str
    channel: str | None
    state: Literal["idle", "ready", "waiting", "full"]
    in_flight: int
    parked: int
    max_concurrency: int | None
    release_interval: timedelta | None
    delivered: int
    served_at: datetime | None
    waiting: int
    exact: bool
    oldest: datetime | None
    delayed: int
    complete: bool


class Channels(list[ChannelInfo]):
    """Channels of a consumer. `next` is set when there may be more: call again with `after` it, in the same order."""

    next: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker of a leased consumer. It counts as alive until `until`, unless it is seen again."""

    stream: str
    consumer: str
    name: str
    lanes: list[int]
    joined_at: datetime
    seen_at: datetime
    until: datetime
    in_flight: int
