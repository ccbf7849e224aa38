"""The answers that are about messages: sent, received, settled, looked at and dead."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from ...types import Attempt, DeadLetter, LifeEvent, MessageState, PeekedMessage, StoredMessage


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


class Stored(Struct):
    """A message as it lies in its stream."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    deliver_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, m: StoredMessage) -> Stored:
        """The answer for what insights know."""
        return cls(m.seq, m.key, shown(m.data), m.headers, m.deliver_at, m.created_at)


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

    @classmethod
    def of(cls, m: PeekedMessage) -> Peeked:
        """The answer for what insights know."""
        stored = Stored(m.seq, m.key, shown(m.data), m.headers, None, m.created_at)
        return cls(stored, m.state, m.attempt, m.visible_at, m.worker, m.reason, m.last_error)


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


class Dead(Struct):
    """A message that failed too often."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int | None

    @classmethod
    def of(cls, d: DeadLetter) -> Dead:
        """The answer for what insights know."""
        return cls(
            d.seq, d.key, shown(d.data), d.headers, d.failed_at, d.attempts, d.last_error, d.source_seq
        )  # fmt: skip


class Redriven(Struct):
    """How many dead letters were given back."""

    redriven: int


class Purged(Struct):
    """How many dead letters were thrown away."""

    purged: int


_encode = msgspec.json.Encoder(decimal_format="number").encode


def shown(data: Any) -> Any:
    """Data that the SDK has decoded, as JSON shows it. Bytes are base64."""
    if isinstance(data, (bytes, bytearray)):
        return base64.b64encode(data).decode("ascii")
    if isinstance(data, str):
        return data
    try:
        return msgspec.Raw(_encode(data))
    except (ValueError, OverflowError, RecursionError):  # half a surrogate pair: who sends with SQL can write anything
        return json.dumps(data)
