"""Looks at one thing: a stream, a consumer, a message, a source; and at what waits for whom."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ..errors import ConsumerNotFound, NotAllowed, StreamNotFound
from ..sync import Headgate
from ..types import (
    BackfillInfo,
    ChannelInfo,
    ConsumerInfo,
    DeadLetter,
    LifeEvent,
    MessageState,
    PeekedMessage,
    PostgresSourceInfo,
    SourceInfo,
    StoredMessage,
    StreamInfo,
    WorkerInfo,
)
from .looking import Look
from .waiting import why

BUSIEST = 5  # streams whose newest messages are shown together, and consumers whose channels are
NEWEST = 20  # messages of each
KEPT = 200  # messages that are remembered
HELD = 200  # messages of a consumer, in flight and parked; and so many dead ones
NEXT = 20  # messages that it has still to read
GONE = (StreamNotFound, ConsumerNotFound, NotAllowed)  # dropped meanwhile, or not for this caller


@dataclass(frozen=True)
class OfStream:
    """A stream with its consumers and its newest messages."""

    info: StreamInfo
    consumers: list[ConsumerInfo]
    newest: list[StoredMessage]


@dataclass(frozen=True)
class OfConsumer:
    """A consumer with what it has in hand, what is parked and dead, and what comes next."""

    info: ConsumerInfo
    stream: StreamInfo
    held: list[PeekedMessage]
    dead: list[DeadLetter]
    next: list[PeekedMessage]
    channels: list[ChannelInfo]
    workers: list[WorkerInfo]


@dataclass(frozen=True)
class OfMessage:
    """A message, unless it was removed, with its life; where it stands with each consumer, and why it waits."""

    message: StoredMessage | None
    states: list[tuple[MessageState, str]]
    life: list[LifeEvent]


@dataclass(frozen=True)
class OfSource:
    """A source of tables with its backfills, or one of webhooks."""

    info: PostgresSourceInfo | SourceInfo
    backfills: list[BackfillInfo]


def of_stream(hg: Headgate, name: str) -> OfStream:
    """Looks at a stream."""
    info = hg.insights.stream(name)
    return OfStream(info, hg.insights.consumers(name), hg.insights.messages(name, NEWEST * 2, newest_first=True))


def of_consumer(hg: Headgate, stream: str, name: str) -> OfConsumer:
    """Looks at a consumer."""
    looks = hg.insights
    info, of = looks.consumer(stream, name), looks.stream(stream)
    held = looks.peek(stream, name, HELD, states=["delivered", "parked"])
    dead = looks.dead_letters(stream, name, HELD) if info.dead else []
    following = looks.peek(stream, name, NEXT, states=["available"]) if info.unread else []
    channels = [] if of.lane_by == "hash" else list(looks.channels(stream, name, limit=NEXT))
    return OfConsumer(info, of, list(held), dead, list(following), channels, looks.workers(stream, name))


def of_message(hg: Headgate, stream: str, seq: int) -> OfMessage:
    """Looks at a message."""
    found = hg.insights.messages(stream, 1, after=seq - 1)
    message = found[0] if found and found[0].seq == seq else None
    states = hg.insights.message(stream, seq)
    consumers = {c.name: c for c in hg.insights.consumers(stream)} if states else {}
    told = [(s, why(hg, consumers[s.consumer], message, s)) for s in states if s.consumer in consumers]
    return OfMessage(message, told, hg.insights.message_life(stream, seq))


def sources(hg: Headgate) -> list[OfSource]:
    """All sources. A token that is bound to some streams may not see them: NotAllowed says so."""
    tables = [OfSource(s, hg.sources.backfills(s.name)) for s in hg.sources.all_postgres()]
    return [*tables, *(OfSource(s, []) for s in hg.sources.all() if s.kind == "webhook")]


def of_source(hg: Headgate, name: str) -> OfSource:
    """Looks at a source of tables."""
    return OfSource(hg.sources.postgres(name), hg.sources.backfills(name))


def tenants(hg: Headgate, seen: Look) -> list[ChannelInfo]:
    """The channels with the most that waits, of the consumers that have the most to do."""
    named = {s.name for s in seen.streams if s.lane_by != "hash"}
    lines = sorted((line for line in seen.lines if line.info.stream in named), key=lambda line: -line.info.lag)
    found: list[ChannelInfo] = []
    for line in lines[:BUSIEST]:
        with suppress(*GONE):
            found += hg.insights.channels(line.info.stream, line.info.name, limit=NEWEST)
    return sorted(found, key=lambda c: (-c.waiting, -c.in_flight, c.stream, c.consumer, c.channel or ""))


class Flow:
    """The newest messages of the streams that were written to last, as they come."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._newest: list[tuple[str, StoredMessage]] = []

    def look(self, hg: Headgate, streams: Iterable[StreamInfo]) -> list[tuple[str, StoredMessage]]:
        """Asks for those that are new. The newest come first."""
        written = sorted((s for s in streams if s.newest), key=lambda s: (s.newest, s.name), reverse=True)
        for stream in written[:BUSIEST]:
            after = self._known.get(stream.name, 0)
            if stream.last_seq == after:
                continue
            with suppress(*GONE):
                for m in hg.insights.messages(stream.name, NEWEST, newest_first=True, after=after or None):
                    self._newest.append((stream.name, m))
                    self._known[stream.name] = max(self._known.get(stream.name, 0), m.seq)
        self._newest.sort(key=lambda each: (each[1].created_at, each[0], each[1].seq), reverse=True)
        del self._newest[KEPT:]
        return list(self._newest)
