"""The judge of waiting: calls that somebody's open transaction stopped, and messages that nobody got although nobody
held them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..record import Event, History, TransactionRecord
from .choosing import concerns, may_skip
from .reading import ConsumerHistory, Log, Violation, Written, names

# Operators' calls wait for a while, and then say who is in the way.
OPERATORS = (
    "seek", "set_lanes", "discard", "retry_now", "redrive", "replay", "purge_dead", "alter_consumer", "alter_stream",
    "pause", "resume", "set_channel", "recreate_stream",
)  # fmt: skip
LONGEST = 1.0
LONGEST_OPERATOR = 10.0
# How long calls may take that say so in their documentation. None of them holds anything while it waits.
PATIENCE = {"seek": 2.0, "leave_workers": 2.0, "mark": 2.5, "next_mark": 2.5}


def stopped(history: History) -> Iterator[Violation]:
    """8: a call that took longer than a second because of somebody's open transaction."""
    shown: set[tuple[str, ...]] = set()
    for event in history.events:
        limit = PATIENCE.get(event.kind, LONGEST_OPERATOR if event.kind in OPERATORS else LONGEST)
        if event.took < limit or event.took - history.excuse(event) < limit:
            continue
        if any(f.start < event.answered and f.end > event.called for f in history.faults):
            continue
        seen = [w for w in history.waits if w.session == event.session and event.called <= w.at <= event.answered]
        blockers = {
            t for w in seen for b in w.blockers if (t := open_at(history, b, w.at)) and not at_one(history, t, event)
        }
        if not blockers:
            continue
        if any(e.kind in ("compact", "maintain") and e.answer for e in history.events if e.transaction in blockers):
            continue  # their documentation says that they are to be called alone
        kinds = tuple(sorted({e.kind for e in history.events if e.transaction in blockers}))
        if (event.kind, *kinds) in shown:
            continue
        shown.add((event.kind, *kinds))
        yield Violation(
            "stopped",
            f"{event.session}'s {event.kind} at {event.called:.3f} took {event.took:.3f} s: it waited for "
            + ", ".join(f"{t.session} in {t} ({', '.join(done_in(history, t))})" for t in blockers),
            event.called,
            event.consumer,
            (),
            (event, *(e for e in history.events if e.transaction in blockers)),
        )


def open_at(history: History, session: str, at: float) -> TransactionRecord | None:
    found = [t for t in history.transactions if t.session == session and t.began < at < t.ended]
    return found[0] if found else None


def done_in(history: History, transaction: TransactionRecord) -> list[str]:
    return [e.kind for e in history.events if e.transaction is transaction]


def at_one(history: History, transaction: TransactionRecord, event: Event) -> bool:
    """Whether the other transaction settles the very messages that this call is about: then it has to wait."""
    mine = set(names(event))
    mine |= {a.rpartition(".")[0] for a in mine if a.count(".") == 2} if event.kind in SETTLING else set()
    for other in history.events:
        if other.transaction is transaction and other.kind == "discard" and other.consumer == event.consumer and mine:
            return True  # it may have taken them out of the delivery
        if other.transaction is transaction and other.kind in SETTLING and other.consumer == event.consumer:
            theirs = set(names(other))
            if (
                other.kind in GIVING_BACK or other.asked.get("by") == 0
            ):  # in order, what comes later in their keys goes with them
                theirs |= {a.rpartition(".")[0] for a in theirs if a.count(".") == 2}
            if theirs & mine or {a.rpartition(".")[0] for a in theirs if a.count(".") == 2} & {
                a for a in names(event) if a.count(".") == 1
            }:
                return True
    return False


SETTLING = ("ack", "nack", "release", "extend", "receive")
GIVING_BACK = ("nack", "release")


# 9: stalled

STALL = 1.5  # seconds for which nothing stands in a message's way
TRIES = 3  # receives in that time that had room for it
# In order, a lane waits for a tenth of a second for acks of young deliveries before it looks further past their keys.
PASSING = 0.2
OPERATING = (*OPERATORS, "compact", "maintain")

ReadSpan = tuple[float, float]


def stalled(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """9: a message that was due did not come for long, although nobody held its lane and several had room for it."""
    settings = reading.plan.settings
    limits = ("max_concurrency", "release_interval", "max_ack_pending", "leased")
    if (
        reading.clock_jumps
        or any(settings.get(s) for s in limits)
        or reading.preset.upsert
        or "set_lanes" in reading.preset.weights
    ):
        return
    keys: dict[str | None, list[Written]] = defaultdict(list)
    for written in log.values():
        keys[written.sent.key].append(written)
    held = lanes_held(reading)
    operated = operating(reading) + looked_into(reading) + disturbed(reading)
    alone = [e for e in reading.of("receive") if e.transaction is None and not e.problem]
    tries = [e for e in alone if len(e.answer) < e.asked["n"]]
    for seq, handed in reading.handed.items():
        message, first = log.get(seq), min(handed, key=lambda h: h.event.called)
        if message is None or not message.is_committed:
            continue
        if first.event.called < message.seen_by + STALL:
            continue
        due = due_at(reading, keys[message.sent.key], message)
        if first.event.called < due + STALL:
            continue
        excuses = held.get(first.message.lane, []) + operated + left_behind(reading, message) + reading.history.starved
        for start, end in gaps((due, first.event.called), excuses):
            seen = [e for e in tries if start < e.called and e.answered < end]
            if len(seen) < TRIES or max(e.answered for e in seen) < start + STALL:  # nobody asked for that long
                continue
            if reading.plan.ordered and max(e.answered for e in seen) - min(e.called for e in seen) < PASSING:
                continue
            others = [t for t in reading.history.transactions if t.began < end and t.ended > start]
            mine = [t for t in others if any(e.transaction is t for e in reading.events)]
            yield Violation(
                "stalled",
                f"message {seq} was due at {due:.3f} and came at {first.event.called:.3f}; from {start:.3f} "
                f"to {end:.3f} nobody held its lane, and {len(seen)} receives had room for it. Open then: "
                + "; ".join(f"{t.session} in {t} ({', '.join(done_in(reading.history, t))})" for t in mine),
                start,
                reading.plan.name,
                (seq,),
                (first.event, *seen[:3], *(e for e in reading.events if e.transaction in mine)),
            )
            return  # one of them tells it all


def due_at(reading: ConsumerHistory, same_key: list[Written], message: Written) -> float:
    """When it should have come: committed, its delay over, and, in order, those before it finished."""
    due = message.seen_by + message.sent.delay
    if not reading.plan.ordered or message.sent.key is None:
        return due
    sent = min(e.called for e in message.events)
    for other in same_key:
        if not other.is_possible or other is message:
            continue
        if min(e.called for e in other.events) < sent or other.seq < message.seq:
            over = [a.seen_by for _, a in reading.acks.get(other.seq, []) if a.happened]
            if any(concerns(r, other.seq) for r in reading.replays):
                over = [max(over, default=float("inf"))]
            due = max(due, min(over, default=float("inf")))
    return due


def left_behind(reading: ConsumerHistory, message: Written) -> list[ReadSpan]:
    """When a seek may have skipped it, until another one brings it back."""
    back = [s for s in reading.seeks if not may_skip(s, message)]
    return [
        (s.called, min((b.seen_by for b in back if b.seen_by > s.seen_by), default=float("inf")))
        for s in reading.seeks
        if may_skip(s, message)
    ]


def lanes_held(reading: ConsumerHistory) -> dict[int, list[ReadSpan]]:
    """When somebody's open transaction had something to do with a lane."""
    held: dict[int, list[ReadSpan]] = {}
    for event in reading.events:
        if event.transaction is None:
            continue
        lanes = {m.lane for m in event.answer or []} if event.kind == "receive" else set()
        lanes |= {int(a.partition(".")[0]) for a in names(event)}
        for lane in lanes:
            held.setdefault(lane, []).append((event.called, event.transaction.ended))
    return held


def looked_into(reading: ConsumerHistory) -> list[ReadSpan]:
    """When an open transaction may have held lanes that gave it nothing.

    Its receive was the first statement after BEGIN, or lanes are named: see docs/concepts/locks.md.
    """
    named = reading.preset.stream.get("lane_by", "hash") != "hash"
    firsts: dict[int, Event] = {}
    for event in sorted(reading.history.events, key=lambda e: e.called):
        if event.transaction is not None:
            firsts.setdefault(id(event.transaction), event)
    return [
        (event.called, event.transaction.ended)
        for event in reading.of("receive")
        if event.transaction is not None and (named or firsts[id(event.transaction)] is event)
    ]


def operating(reading: ConsumerHistory) -> list[ReadSpan]:
    """When an operator's call, or the transaction that it was part of, may have stood in everybody's way."""
    spans = []
    for event in reading.history.events:
        if event.kind in OPERATING and event.consumer in (None, reading.plan.name):
            spans.append((event.called, event.transaction.ended if event.transaction else event.answered))
    pauses = reading.of("pause")
    ends = sorted(e.seen_by for e in reading.of("resume"))
    spans += [(p.called, next((t for t in ends if t > p.called), float("inf"))) for p in pauses]
    return spans


def disturbed(reading: ConsumerHistory) -> list[ReadSpan]:
    """When a fault may have kept messages from everybody: until what it left in flight has expired."""
    wait = max(reading.plan.ack_wait, float(reading.plan.settings.get("lease_time", 0.0)))
    wait = max([wait, *(reading.ack_wait(e) for e in reading.of("receive"))])
    lost = [(e.called, e.answered + wait) for e in reading.events if e.problem]
    return lost + [(f.start, f.end + wait) for f in reading.history.faults]


def gaps(span: ReadSpan, excuses: list[ReadSpan]) -> list[ReadSpan]:
    """What is left of a span between the excuses."""
    free, at = [], span[0]
    for start, end in sorted(excuses):
        if start > at:
            free.append((at, min(start, span[1])))
        at = max(at, end)
        if at >= span[1]:
            break
    if at < span[1]:
        free.append((at, span[1]))
    return free
