"""The answers that are about messages: sent, received, settled, looked at and dead."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from ...types import Attempt, LifeEvent, MessageState


class Published(Struct):
    """How many messages were sent, and their seqs in order."""

    published: int
    seqs: list[int]


class Message(Struct):
    """A message as it was sent."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    channel: str | None
    created_at: datetime


class Delivery(Struct):
    """A message that was received: it is to be settled by its ack_id."""

    ack_id: str
    message: Message
    attempt: int


class Stored(Struct, omit_defaults=True):
    """A message as it lies in its stream. `cut`: the data is so long, and these are its first characters."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    deliver_at: datetime | None
    created_at: datetime
    cut: int | None = None


class ConsumerState(Struct):
    """The state of a message for one consumer."""

    consumer: str
    state: str
    attempt: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None

    @classmethod
    def of(cls, s: MessageState) -> ConsumerState:
        """The answer for what insights know."""
        return cls(s.consumer, s.state, s.attempt, s.visible_at, s.worker, s.reason, s.last_error)


class MessageWithStates(Struct):
    """A message, and its state for each consumer of its stream."""

    message: Stored
    consumers: list[ConsumerState]


class Peeked(Struct):
    """A message and its state for a consumer."""

    message: Stored
    state: str
    deliver_count: int
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


class Happening(Struct):
    """Something that happened to a message, or (`at` is null) where it is now. `until`: a deadline, or when it is due.

    Of the message: sent, or gone. For a consumer: delivered, failed, expired, dead, redriven, replayed, discarded, and
    parked, delayed, blocked, released, waiting (not read yet), skipped (by the filter) or done.
    """

    at: datetime | None
    consumer: str | None
    event: str
    attempt: int | None
    worker: str | None
    error: str | None
    until: datetime | None

    @classmethod
    def of(cls, e: LifeEvent) -> Happening:
        """The answer for what insights know."""
        return cls(e.at, e.consumer, e.event, e.attempt, e.worker, e.error, e.until)


class FailedAttempt(Struct):
    """An attempt that failed: nacked, or expired. `is_dead`: with it the message became a dead letter."""

    id: int
    consumer: str
    seq: int
    attempt: int
    began: datetime | None
    at: datetime
    outcome: str
    is_dead: bool
    worker: str | None
    error: str | None

    @classmethod
    def of(cls, a: Attempt) -> FailedAttempt:
        """The answer for what insights know."""
        return cls(
            a.id, a.consumer, a.seq, a.attempt, a.began, a.at, a.outcome, a.is_dead, a.worker, a.error
        )  # fmt: skip


class Replayed(Struct):
    """How many messages come again. `next_seq`: that was not all, go on with it as `from_seq`.

    `not_found`: seqs whose messages were removed. `passed_over`: in flight or parked already, not read yet, not let
    through by the consumer's filter, or superseded.
    """

    replayed: int
    not_found: int
    passed_over: int
    next_seq: int | None


class Retried(Struct):
    """How many parked messages are due now."""

    retried: int


class Acked(Struct):
    """How many messages were acked; how many ack_ids were stale: settled before, or taken back."""

    acked: int
    stale: int


class Nacked(Struct):
    """How many messages were nacked; how many ack_ids were stale."""

    nacked: int
    stale: int


class Released(Struct):
    """How many messages were handed back; how many ack_ids were stale."""

    released: int
    stale: int


class Extended(Struct):
    """How many messages have their new deadline; how many ack_ids were stale."""

    extended: int
    stale: int


class DiscardedSome(Struct):
    """How many messages were discarded, how many an open transaction holds, and where to go on (null: that was all)."""

    discarded: int
    held: int
    more: str | None


class Dead(Struct, omit_defaults=True):
    """A message that failed too often. `cut`: the data is so long, and these are its first characters."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int | None
    cut: int | None = None


class DeadGroup(Struct):
    """Dead letters with one error, without what differs in it. `complete`: there are no more than were looked at."""

    group: str
    letters: int
    first_at: datetime
    last_at: datetime
    last_error: str | None
    complete: bool


class Waiting(Struct):
    """A message of a key that the consumer is not done with. State `more`: it was looked up to here, and no further."""

    seq: int
    created_at: datetime | None
    state: str
    attempt: int | None
    not_visible_until: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


class Tried(Struct):
    """How many messages a filter let through, of how many; some keys that it did let through, and some others."""

    looked: int
    passed: int
    passing: list[str]
    others: list[str]


class Redriven(Struct):
    """How many dead letters were given back."""

    redriven: int


class Purged(Struct):
    """How many dead letters were thrown away."""

    purged: int
