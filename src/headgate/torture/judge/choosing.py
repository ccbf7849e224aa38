"""Which messages a seek, a replay, a retry or a discard is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..presets.preset import channel_of
from ..record import Event

if TYPE_CHECKING:
    from .reading import Written


def concerns(event: Event, seq: int) -> bool:
    """Whether an operator's call is about this message: it names it, or names none."""
    return event.asked.get("seqs") is None or seq in event.asked["seqs"]


def chooses(event: Event, seq: int, key: str | None) -> bool:
    """Whether a discard is about a message, whatever its age: it names it, its key or channel, or nothing at all."""
    keys, channel = event.asked.get("keys"), event.asked.get("channel")
    return concerns(event, seq) and (keys is None or key in keys) and (channel is None or channel_of(key) == channel)


def discards(event: Event, message: Written) -> bool:
    """Whether a discard may have found the message: it takes what had committed when it was called."""
    age = event.asked.get("age")
    if age is not None and message.written_from >= event.answered - age:
        return False
    return message.seen_from < event.answered and chooses(event, message.seq, message.sent.key)


def surely_discards(event: Event, message: Written) -> bool:
    """Whether the message was surely not unfinished any more when the discard was answered, if that counts."""
    sent_before = event.called - (event.asked.get("age") or 0.0)
    return isinstance(event.answer, int) and message.seen_by < sent_before and discards(event, message)


def may_skip(seek: Event, message: Written) -> bool:
    """Whether a seek leaves the message behind."""
    target = seek.asked["target"]
    if target == "beginning":
        return False
    if target == "end":
        return message.seen_from < seek.seen_by
    if target == "time":
        return message.written_from < seek.answered - float(seek.asked["age"])
    return int(target) > message.seq
