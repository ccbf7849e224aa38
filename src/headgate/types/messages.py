"""Messages: to send, stored, settled, failed, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

State = Literal["available", "delivered", "parked", "done", "dead", "discarded", "skipped"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send, when it has more than data: for `send_batch`."""

    data: Any
    key: str | None = None
    headers: dict[str, Any] | None = None
    delay: float | timedelta | None = None
    id: str | None = None
    channel: str | None = None
    deliver_at: datetime | str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an ack, nack or extend: how many messages it settled, and how many ack_ids were stale."""

    settled: int
    stale: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """How many messages were discarded, and how many were passed over: an open transaction has them `held`.

    `more` is None when that was all. After one step of `discard_some` it may say where to go on.
    """

    discarded: int
    held: int
    more: str | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies in the stream."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    deliver_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message and its state for one consumer."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime
    state: State
    attempt: int
    visible_at: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


class Peek(list[PeekedMessage]):
    """Messages that were looked at.

    `next` is a seq when the look ended before it had seen everything, because it looks at no more than about 20,000
    messages: call again with `after` (with `newest_first`, `before`) that seq.
    """

    next: int | None = None


@dataclass(frozen=True, slots=True)
class MessageState:
    """The state of one message for one consumer."""

    consumer: str
    state: State
    attempt: int
    visible_at: datetime | None
    worker: str | None
    reason: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did. `not_found`: their messages were removed; `passed_over`: they come anyway, or never.

    `next_seq` is set when that was not all: go on with it as `from_seq`.
    """

    replayed: int
    not_found: int
    passed_over: int
    next_seq: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that failed: nacked, or expired (its deadline passed). `is_dead`: with it came the dead letter."""

    id: int
    consumer: str
    seq: int
    attempt: int
    began: datetime | None
    at: datetime
    outcome: Literal["nacked", "expired"]
    is_dead: bool
    worker: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """Something that happened to a message, or (at no time that is known) where it is now.

    Without a consumer: `sent`, or `gone`. `until` is a deadline, or when it is due.
    """

    at: datetime | None
    consumer: str | None
    event: str
    attempt: int | None
    worker: str | None
    error: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that failed too often: `seq` is its place in the dead-letter stream, `source_seq` in its own."""

    seq: int
    key: str | None
    data: Any
    headers: dict[str, Any] | None
    failed_at: datetime
    attempts: int
    last_error: str | None
    source_seq: int | None
