"""Why a message is not being worked on, in a sentence."""

from __future__ import annotations

from datetime import UTC, datetime

from ..readable import ago
from ..sync import Headgate
from ..types import ConsumerInfo, MessageState, StoredMessage

FAR = 1000  # messages of a consumer among which the one is looked for that another waits for


def why(hg: Headgate, consumer: ConsumerInfo, message: StoredMessage | None, state: MessageState) -> str:
    """The reason, as far as it can be told; nothing of one that is done."""
    now = datetime.now(UTC)
    if state.state == "dead":
        return "it failed too often, and is a dead letter: d redrives those of the consumer"
    if state.state == "delivered":
        until = f", until {ago(state.visible_at, now)}" if state.visible_at else ""
        return f"{state.worker or 'a worker'} has it{until}"
    if state.state not in ("parked", "available"):
        return ""
    if consumer.paused:
        return "the consumer is paused"
    if state.state == "parked":
        return _parked(hg, consumer, message, state, now)
    if (before := _blocker(hg, consumer, message)) is not None:
        return f"it waits for message {before:,} of the same key"
    if consumer.max_ack_pending is not None and consumer.in_flight >= consumer.max_ack_pending:
        return f"the consumer has as many in flight as it may: {consumer.max_ack_pending:,}"
    if not consumer.rate and not consumer.in_flight:
        return "nobody receives: there is no worker, or none asks"
    each = "" if consumer.max_concurrency is None else f", and a channel has {consumer.max_concurrency:,} at once"
    return f"it is one of {consumer.unread:,} that wait, at {consumer.rate:,.1f} a second{each}"


def _parked(
    hg: Headgate, consumer: ConsumerInfo, message: StoredMessage | None, state: MessageState, now: datetime
) -> str:
    if state.visible_at is None:
        before = _blocker(hg, consumer, message)
        return f"it waits for {'an earlier message' if before is None else f'message {before:,}'} of the same key"
    if state.visible_at <= now:
        return "it is due, and waits for a worker to ask"
    failed = f"attempt {state.attempt:,} failed, the next one" if state.attempt else "it is delayed, and"
    return f"{failed} is due {ago(state.visible_at, now)}"


def _blocker(hg: Headgate, consumer: ConsumerInfo, message: StoredMessage | None) -> int | None:
    """The first message of the same key that is not done, of a consumer that keeps the order of each key."""
    if consumer.order != "key" or message is None or message.key is None:
        return None
    where = (consumer.stream, consumer.name, FAR)
    earlier = hg.insights.peek(*where, states=["parked", "delivered"], before=message.seq)
    return next((m.seq for m in earlier if m.key == message.key), None)
