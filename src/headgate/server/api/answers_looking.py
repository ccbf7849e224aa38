"""The answers for people who look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...types import ConsumerInfo, SegmentInfo, StreamInfo
from .answers import Consumer, Stream


class Totals(Struct):
    """What streams and consumers make together. Rates are messages a second, sent and first delivered."""

    streams: int
    consumers: int
    sent: float
    delivered: float
    lag: int
    in_flight: int
    parked: int
    dead: int
    bytes: int

    @classmethod
    def of(cls, streams: Sequence[StreamInfo], consumers: Sequence[ConsumerInfo]) -> Totals:
        """The sums."""
        return cls(
            len(streams),
            len(consumers),
            sum(s.rate or 0.0 for s in streams),
            sum(c.rate for c in consumers),
            sum(c.lag for c in consumers),
            sum(c.in_flight for c in consumers),
            sum(c.parked for c in consumers),
            sum(c.dead for c in consumers),
            sum(s.bytes for s in streams),
        )


class Troubled(Struct):
    """A consumer and what is the matter with it: lost, stuck, failing, behind, dead, paused or fine.

    `age`: seconds that its oldest message has waited.
    """

    consumer: Consumer
    trouble: str
    about: str
    age: float | None


class Overview(Struct):
    """Everything at a glance, as it was at `at`; how many streams and consumers fit in all."""

    at: datetime
    totals: Totals
    streams: list[Stream]
    streams_found: int
    consumers: list[Troubled]
    consumers_found: int


class Pipeline(Struct):
    """What a pipeline last said of itself. One that runs and was not heard of for a minute is `lost`."""

    name: str
    kind: str
    state: str
    process: str
    spec: Any
    progress: Any
    error: str | None
    started_at: datetime
    seen_at: datetime


class Segment(Struct):
    """A segment of a stream's log: the seqs from `first_seq` to below `end_seq`, and why it is kept once closed."""

    id: int
    state: str
    first_seq: int
    end_seq: int
    messages: int | None
    bytes: int
    created_at: datetime
    closed_at: datetime | None
    last_at: datetime | None
    kept_by: str | None

    @classmethod
    def of(cls, info: SegmentInfo) -> Segment:
        """The answer for what insights know."""
        return cls(**{name: getattr(info, name) for name in cls.__struct_fields__})


class Past(Struct):
    """How it was at a moment: rates are messages a second, sent and first delivered. Null is what it is not about."""

    at: datetime
    sent: float | None
    bytes: int | None
    delivered: float | None
    lag: int | None
    in_flight: int | None
    parked: int | None
    dead: int | None


class Position(Struct):
    """The first seq there."""

    seq: int


class SeekPreview(Struct):
    """Where a seek would go, how many messages would come again, and how many unread ones would be passed over.

    Without `exact` these are estimates.
    """

    seq: int
    again: int
    passed_over: int
    exact: bool
