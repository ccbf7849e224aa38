"""The judge of discards: what was discarded does not come, and is counted once."""

from __future__ import annotations

from collections.abc import Iterator

from ..record import Event
from .choosing import discards, may_skip, surely_discards
from .floors import is_discarded, surely_done
from .reading import ConsumerHistory, Log, Violation, Written


def after_discard(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Delivered by a receive that was called after a discard of it had been answered, and had left nobody out."""
    for gone in reading.of("discard"):
        if not gone.happened:
            continue
        for seq, handed in reading.handed.items():
            message = log.get(seq)
            if message is None or not surely_discards(gone, message):
                continue
            for again in handed:
                receive = again.event
                if receive.called <= gone.seen_by or reading.may_come_again(seq, gone, receive):
                    continue
                yield Violation(
                    "delivered after its discard",
                    f"message {seq} came to {receive.session} at {receive.called:.3f}; {gone.session} had discarded it "
                    f"at {gone.seen_by:.3f}",
                    receive.called,
                    reading.plan.name,
                    (seq,),
                    (gone, receive),
                )
                break


def discarded_too_many(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """More are counted than can have been unfinished: those that were acked or discarded before count no more."""
    for event in reading.of("discard"):
        if not event.happened:
            continue
        left = [
            m.seq
            for m in log.values()
            if m.is_possible and discards(event, m)
            if not surely_done(reading, m.seq, event.called) and not is_discarded(reading, m, event.called)
        ]
        if counted(event) > len(left):
            text = (
                f"{event.session}'s discard at {event.called:.3f} answered {event.answer}, and at most {len(left)} "
                f"were left"
            )
            yield Violation("discarded too many", text, event.called, reading.plan.name, tuple(left[:8]), (event,))


def discarded_too_few(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Fewer are counted than were surely there: what nobody has ever been given."""
    if reading.preset.upsert or reading.preset.loses or any(e.lost for e in reading.of("receive")):
        return
    for event in reading.of("discard"):
        if not event.happened or not isinstance(event.answer, int):
            continue
        there = [m.seq for m in log.values() if surely_discards(event, m) and is_unread(reading, m, event)]
        if event.answer < len(there):
            text = (
                f"{event.session}'s discard at {event.called:.3f} answered {event.answer}, and {len(there)} were unread"
            )
            yield Violation("discarded too few", text, event.called, reading.plan.name, tuple(there[:8]), (event,))


def is_unread(reading: ConsumerHistory, message: Written, event: Event) -> bool:
    """Whether nobody can have been given the message, or have discarded it, when the event was answered."""
    if not message.is_committed or not reading.plan.passes(message.sent.key):
        return False
    if any(h.event.called < event.answered for h in reading.handed.get(message.seq, [])):
        return False
    inside = [s for s in reading.of("seek") if s.transaction is not None and s.transaction is event.transaction]
    moved = [s for s in reading.seeks if s.seen_from < event.answered] + [s for s in inside if s.called < event.called]
    if any(may_skip(s, message) for s in moved):
        return False
    others = [e for e in reading.of("discard") if e is not event and e.called < event.answered]
    return not any(discards(e, message) for e in others)


def counted(event: Event) -> int:
    """How many a discard says that it has discarded."""
    return int(event.answer if isinstance(event.answer, int) else event.answer[0])
