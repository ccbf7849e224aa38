"""The judge of time and measure: what came before it was due, or more at once, or faster, than the consumer allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ..record import Event
from .reading import ConsumerHistory, Handed, Log, Violation

HURRYING = ("retry_now", "redrive", "replay", "seek")  # these make what waits due at once
CHANGING = ("set_channel", "alter_consumer")


def too_early(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """A message that was sent with a delay, or was nacked with one, came before that had passed."""
    if reading.clock_jumps:
        return
    for seq, handed in reading.handed.items():
        sent = log.get(seq)
        if sent is not None and sent.sent.delay:
            due = min(e.called for e in sent.events) + sent.sent.delay
            for h in handed:
                if h.event.answered < due and not _hurried(reading, sent.events[0], h.event, ("retry_now", "replay")):
                    yield _early(reading, seq, h.event, due, sent.events[0])
        for first in handed:
            for nack in first.settled:
                if nack.kind != "nack" or not nack.happened or nack.answer[1] or not nack.asked.get("delay"):
                    continue
                due = nack.called + nack.asked["delay"]
                for h in handed:
                    if (
                        nack.seen_by < h.event.called
                        and h.event.answered < due
                        and not _hurried(reading, nack, h.event)
                    ):
                        yield _early(reading, seq, h.event, due, nack)


def _hurried(reading: ConsumerHistory, put_off: Event, event: Event, by: tuple[str, ...] = HURRYING) -> bool:
    return any(e.called < event.answered and e.seen_by > put_off.called for e in reading.of(*by))


def _early(reading: ConsumerHistory, seq: int, event: Event, due: float, why: Event) -> Violation:
    text = f"message {seq} came to {event.session} at {event.answered:.3f} and was not due before {due:.3f}"
    return Violation("too early", text, event.called, reading.plan.name, (seq,), (why, event))


def over_cap(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """More messages of a channel in flight at once than max_concurrency."""
    cap = reading.plan.settings.get("max_concurrency")
    if cap is None or any(kind in reading.preset.weights for kind in CHANGING):
        return
    for lane in _lanes(reading).values():
        for receive in {id(h.event): h.event for h in lane}.values():
            own = [h for h in lane if h.event is receive]
            others = [h for h in lane if h.event is not receive and _surely_in_flight(reading, h, receive)]
            if len(own) + len(others) > cap:
                seqs = tuple(h.message.seq for h in own + others)
                text = (
                    f"{receive.session}'s receive at {receive.called:.3f} got {len(own)} messages of a channel; "
                    f"{len(others)} of it were in flight already, and at most {cap} may be"
                )
                events = tuple(dict.fromkeys(h.event for h in others + own))
                yield Violation("over max_concurrency", text, receive.called, reading.plan.name, seqs, events)


def _surely_in_flight(reading: ConsumerHistory, handed: Handed, receive: Event) -> bool:
    """Whether another receive must have known that the message was in flight."""
    event = handed.event
    if not event.happened or event.seen_by > receive.called or reading.given_back(handed, receive):
        return False
    for e in handed.settled:
        inside = e.transaction is not None and e.transaction is receive.transaction
        if inside or (e.possible and e.seen_from < receive.answered):
            return False
    return receive.answered < reading.live_until(handed, receive.called)


def over_pace(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Messages of a channel that came faster than release_interval."""
    pace = reading.plan.settings.get("release_interval")
    if pace is None or reading.clock_jumps or any(kind in reading.preset.weights for kind in CHANGING):
        return
    for lane in _lanes(reading).values():
        lane.sort(key=lambda h: h.event.called)
        for before, after in pairwise(lane):
            is_same = after.event is before.event
            if not is_same and after.event.called <= before.event.answered:
                continue
            if not before.event.happened or reading.moved(before.event.called, after.event.answered):
                continue
            # (one receive that takes long may get several)
            if after.event.answered < before.event.called + pace:
                seqs = (before.message.seq, after.message.seq)
                text = (
                    f"messages {seqs[0]} and {seqs[1]} of a channel came within "
                    f"{after.event.answered - before.event.called:.3f} s, not {pace:.3f}"
                )
                events = (before.event, after.event)
                yield Violation("over release_interval", text, after.event.called, reading.plan.name, seqs, events)


def _lanes(reading: ConsumerHistory) -> dict[int, list[Handed]]:
    lanes: dict[int, list[Handed]] = defaultdict(list)
    for handed in reading.handed.values():
        for h in handed:
            lanes[h.message.lane].append(h)
    return lanes
