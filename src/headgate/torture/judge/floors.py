"""The judge of what the engine says of itself: floors, counts, states, losses; and of what is gone too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..record import Event, History
from ..sessions.observers import FinalState
from .choosing import concerns, discards, may_skip, surely_discards
from .reading import ACKING, ConsumerHistory, Log, Violation, Written

SLOWEST = 1.0


def slow_looks(history: History) -> Iterator[Violation]:
    """Looking locks nothing and waits for nobody."""
    for event in history.events:
        if event.kind in ("look", "count") and event.took - history.excuse(event) > SLOWEST:
            text = f"{event.session}'s {event.asked.get('what', 'count')} at {event.called:.3f} took {event.took:.3f} s"
            yield Violation("slow look", text, event.called, None, (), (event,))


def may_be_done(reading: ConsumerHistory, message: Written, event: Event) -> bool:
    """Whether the consumer may be done with it when the event is answered; where it was moved, perhaps."""
    seq, at = message.seq, event.answered
    if reading.preset.upsert or not reading.plan.passes(message.sent.key):
        return True
    if any(s.seen_from < at and (may_skip(s, message) or s.seen_by > event.called) for s in reading.seeks):
        return True
    since = max((s.called for s in reading.seeks if s.happened and s.seen_by <= event.called), default=0.0)
    settled = [e for h in reading.handed.get(seq, []) for e in h.settled if e.kind in ACKING]
    if any(e.called < at and e.seen_by > since for e in settled):
        return True
    if reading.maybe_dead(seq, at) or any(may_have_ended(reading, e, message, at) for e in reading.of("discard")):
        return True
    return reading.preset.loses or any(reading.may_be_removed(message, s) for s in reading.seeks if s.seen_from < at)


def may_have_ended(reading: ConsumerHistory, discard: Event, message: Written, at: float) -> bool:
    """Whether a discard may be why the message is done by then. Not if it was handed out between the two."""
    if discard.called >= at or not discards(discard, message):
        return False
    return not any(discard.seen_by < h.event.called < at for h in reading.handed.get(message.seq, []))


def floors(reading: ConsumerHistory) -> list[tuple[Event, int]]:
    """What the consumer's floor was said to be, by calls that saw the newest state of things."""
    name = reading.plan.name
    looks = [e for e in reading.history.events if e.kind == "count" and not e.problem and e.transaction is None]
    found = [(e, e.answer[name].floor) for e in looks if name in e.answer]
    return sorted(((e, floor) for e, floor in found if floor is not None), key=lambda x: x[0].called)


def floor_too_high(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Everything at or below the floor is done, also what is not committed yet."""
    for event, floor in floors(reading):
        for seq, message in log.items():
            if seq > floor or not message.is_committed or may_be_done(reading, message, event):
                continue
            if min(e.answered for e in message.events if e.happened) < event.called:
                text = f"{event.session} was told at {event.called:.3f} that the floor is {floor}; {seq} was not done"
                events = tuple(h.event for h in reading.handed.get(seq, []))
                yield Violation("floor too high", text, event.called, reading.plan.name, (seq,), (event, *events))
                return


def floor_moved_back(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Only a seek, a redrive and a replay give back what was done. (Of named lanes it may be lower than that.)"""
    if reading.preset.lane_by != "hash":
        return
    highest: tuple[Event, int] | None = None
    for event, floor in floors(reading):
        if highest is not None and highest[0].answered < event.called and floor < highest[1]:
            given_back = reading.redrives + reading.replays
            between = [r for r in given_back if r.seen_by > highest[0].called and r.seen_from < event.answered]
            if not between and not reading.moved(highest[0].called, event.answered):
                text = (
                    f"the floor was {highest[1]} at {highest[0].called:.3f} and {floor} at {event.called:.3f}, and "
                    f"nobody had moved the consumer"
                )
                yield Violation("floor moved back", text, event.called, reading.plan.name, (), (highest[0], event))
                return
            highest = None
        if highest is None or floor > highest[1]:
            highest = (event, floor)


def final_state(reading: ConsumerHistory) -> tuple[Event, FinalState] | None:
    found = [e for e in reading.of("final_state") if not e.problem]
    return (found[-1], found[-1].answer) if found else None


def miscounted(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """What is counted is what is there, when nothing moves."""
    found = final_state(reading)
    if found is None or reading.preset.upsert:
        return  # peek shows of each key its newest version alone
    event, (said, states) = found
    there = Counter(states.values())
    pairs = [("in_flight", said.in_flight, there["delivered"]), ("parked", said.parked, there["parked"])]
    if said.exact:
        pairs.append(("unread", said.unread, there["available"]))
    for what, counted, shown in pairs:
        if (reading.preset.loses or reading.preset.upsert) and what != "unread" and counted >= shown:
            continue  # what was removed, or superseded, meanwhile is with its worker, or lost when its turn comes
        if counted != shown:
            text = f"{what} is said to be {counted}, and {shown} messages are so: {dict(there)}"
            yield Violation("miscounted", text, event.called, reading.plan.name, (), (event,))


def wrong_state(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """A message is shown in a state that it cannot be in, or not at all although it is not finished."""
    found = final_state(reading)
    if found is None or reading.preset.upsert:
        return
    event, (_, states) = found
    for seq, message in log.items():
        if not reading.plan.passes(message.sent.key):
            continue
        state = states.get(seq, "gone")
        wrong = None
        if message.is_uncertain:
            continue
        if not message.is_committed:
            wrong = "it was rolled back" if state != "gone" else None
        elif state in ("done", "gone", "dead", "discarded") and not may_be_done(reading, message, event):
            wrong = "it is not finished"
        elif state in ("available", "parked", "delivered") and surely_done(reading, seq, event.called):
            wrong = "it is acked"
        elif state in ("available", "parked", "delivered") and is_discarded(reading, message, event.called):
            wrong = "it is discarded"
        elif state == "discarded" and not any(discards(e, message) for e in reading.of("discard") if e.effective):
            wrong = "nobody discarded it"
        elif state == "delivered" and not may_have_been_received(reading, seq):
            wrong = "nobody received it"
        if wrong:
            check = "dropped before it was done" if state == "gone" else "shown in a wrong state"
            text = f"message {seq} is {state} when nothing moves, but {wrong}"
            yield Violation(check, text, event.called, reading.plan.name, (seq,), tuple(message.events))


def may_have_been_received(reading: ConsumerHistory, seq: int) -> bool:
    return any(h.event.possible for h in reading.handed.get(seq, [])) or any(e.lost for e in reading.of("receive"))


def is_discarded(reading: ConsumerHistory, message: Written, before: float) -> bool:
    """Whether it was surely discarded by then, if it was not finished before, and nothing brought it back."""
    if reading.redrives or any(concerns(r, message.seq) for r in reading.replays):
        return False
    gone = [e for e in reading.of("discard") if e.happened and e.seen_by < before and surely_discards(e, message)]
    return any(not reading.moved(e.called, float("inf")) for e in gone)


def surely_done(reading: ConsumerHistory, seq: int, before: float) -> bool:
    acks = [ack for _, ack in reading.acks.get(seq, []) if ack.happened and ack.seen_by < before]
    if not acks:
        return False
    last = max(acks, key=lambda e: e.seen_by)
    return not reading.moved(last.called, float("inf")) and not reading.redrives + reading.replays


def wrong_loss(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """As many are said to be lost as were removed unfinished, and no more."""
    ending = reading.history.endings.get(reading.plan.name)
    if ending is None or ending.lost is None or not reading.preset.loses or reading.preset.upsert:
        return
    if reading.seeks or reading.redrives or reading.replays:
        return  # what is given back may be lost again
    messages = [m for m in log.values() if m.is_committed and reading.plan.passes(m.sent.key)]
    unfinished = [m.seq for m in messages if not any_settled(reading, m)]
    unsure = [m.seq for m in messages if not surely_done(reading, m.seq, float("inf"))]
    said = ending.lost
    if not len(unfinished) <= said <= len(unsure):
        text = (
            f"{said} messages are said to be lost; {len(unfinished)} were surely not finished, and of "
            f"{len(unsure)} it is not sure: {ending.losses}"
        )
        yield Violation("wrong loss", text, reading.history.drained_at, reading.plan.name, tuple(unfinished[:5]))


def any_settled(reading: ConsumerHistory, message: Written) -> bool:
    seq = message.seq
    if any(e.kind in ACKING and e.possible for h in reading.handed.get(seq, []) for e in h.settled):
        return True
    if reading.maybe_dead(seq, float("inf")):
        return True
    return any(discards(e, message) and e.effective for e in reading.of("discard"))
