"""Streams: their settings, segments and archives; what the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from ..settings import LaneBy, Retain

SegmentState = Literal["open", "closed", "dropped"]
Severity = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream and what is in it. `messages` is counted when `exact`, otherwise estimated.

    In a list of many streams, figures may be those that maintenance saw at `sampled_at`; None: they are of now.
    """

    name: str
    lanes: int
    messages: int
    exact: bool
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    last_seq: int
    rate: float | None
    dedup_window: timedelta
    max_message_bytes: int
    consumers: int
    dead_of: str | None
    created_at: datetime
    retain: Retain
    retain_up_to: timedelta | None
    retain_at_least: timedelta | None
    max_storage: int | None
    is_full: bool
    lane_by: LaneBy
    one_message_per_key: bool
    process_unmodified: bool
    segment_rows: int
    segment_bytes: int
    segment_age: timedelta | None
    compact_every: timedelta
    sampled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment of a stream's log: the seqs from `first_seq` to below `end_seq`.

    `messages` is counted when it is closed; `kept_by` says why it is still there then.
    """

    stream: str
    id: int
    state: SegmentState
    first_seq: int
    end_seq: int
    messages: int | None
    bytes: int
    created_at: datetime
    closed_at: datetime | None
    last_at: datetime | None
    kept_by: str | None


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """An archive of a stream: a table in a lake at `place`, in which no message up to the seq `floor` is missing.

    `lag` is about how many messages it has still to copy, `waiting` how many closed segments it does not have yet.
    """

    stream: str
    name: str
    place: str
    floor: int
    lag: int
    at: datetime
    waiting: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `hg.doctor()` found: a problem wants something done now, a warning soon."""

    severity: Severity
    subject: str
    finding: str
    advice: str
