"""Streams that are dropped and created again: what was sent before belongs to the old one, whose seqs mean nothing."""

from __future__ import annotations

from ..record import Event, History
from .reading import names


def newest_stream(history: History) -> History:
    """The history of the stream that there is in the end: what was called since it was made, and of what was called
    before, what met it. That shows by the data, which no two messages share."""
    made = [e for e in history.events if e.kind == "recreate_stream" and e.happened]
    logs = [e for e in history.events if e.kind == "log" and not e.problem]
    if not made or not logs:
        return history
    since = max(e.seen_by for e in made)
    there: set[str] = logs[-1].answer
    tail = History(history.preset, history.seed)
    tail.transactions, tail.waits, tail.starved = history.transactions, history.waits, history.starved
    tail.endings, tail.drained_at = history.endings, history.drained_at
    acks: set[str] = set()
    for event in sorted(history.events, key=lambda e: e.called):
        if event.called > since or is_new(event, there, acks):
            tail.events.append(event)
            if event.kind == "receive" and not event.problem:
                acks |= {a for m in event.answer for a in (m.ack_id, m.delivery)}
    return tail


def is_new(event: Event, there: set[str], acks: set[str]) -> bool:
    """Whether a call that was made earlier met the new stream."""
    if event.problem:
        return False
    if event.kind == "send":
        return any(m.data in there for m in event.asked["messages"])
    if event.kind == "receive" and any(m.data in there for m in event.answer):
        return True
    return bool(acks & set(names(event)))
