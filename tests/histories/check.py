"""The judge: pure functions over a finished history. Each check answers what is certainly wrong, and nothing else:
where calls overlapped, the engine may have taken either one first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from histories.reading import Reading, Written, written
from histories.record import Event, History
from histories.world import Preset

LEGAL_STATES = ("40001",)  # and our own: HG…, and 55P03 with a hint


class Finding(NamedTuple):
    check: str
    text: str
    at: float
    consumer: str | None = None
    seqs: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()


Log = dict[int, Written]
Check = Callable[[Reading, Log], Iterator[Finding]]


def judge(history: History, preset: Preset) -> list[Finding]:
    """Everything that is wrong with a history, in the order in which it showed."""
    log = written(history)
    findings = [*errors(history)]
    for plan in preset.consumers:
        reading = Reading(history, preset, plan)
        for check in CHECKS:
            findings += check(reading, log)
    return sorted(findings, key=lambda f: f.at)


def after_ack(reading: Reading, log: Log) -> Iterator[Finding]:
    """1: delivered although an ack of it had been answered before the receive was called."""
    for seq, acks in reading.acks.items():
        for _, ack in acks:
            if not ack.happened:
                continue
            for again in reading.handed[seq]:
                receive = again.event
                if receive.called <= ack.seen_by or receive is ack or may_come_again(reading, seq, ack, receive):
                    continue
                yield Finding(
                    "delivered after its ack",
                    f"message {seq} came to {receive.session} at {receive.called:.3f}, acked by {ack.session} at {ack.seen_by:.3f}",
                    receive.called,
                    reading.plan.name,
                    (seq,),
                    (ack, receive),
                )
                break


def may_come_again(reading: Reading, seq: int, ack: Event, receive: Event) -> bool:
    if reading.moved(ack.called, receive.answered) or reading.moved_inside(receive, ack.called):
        return True
    return reading.maybe_dead(seq, receive.called) and any(
        r.seen_by > ack.called and r.called < receive.answered for r in reading.of("redrive")
    )


def two_at_once(reading: Reading, log: Log) -> Iterator[Finding]:
    """3: handed out again although the earlier delivery had not expired and was not given back."""
    for seq, handed in reading.handed.items():
        for first in handed:
            for second in handed:
                event = second.event
                if event.called <= first.event.answered or second is first:
                    continue
                if event.answered >= reading.live_until(first, event.called) or reading.given_back(first, event):
                    continue
                if any(e.happened and e.kind in ("ack", "receive") for e in first.settled):
                    continue  # the first check judges these
                yield Finding(
                    "two live deliveries",
                    f"message {seq} was with {first.event.session} ({first.message.ack_id}) until "
                    f"{reading.live_until(first, event.called):.3f}, and came to {event.session} at {event.called:.3f}",
                    event.called,
                    reading.plan.name,
                    (seq,),
                    (first.event, event),
                )


def beside_open_ack(reading: Reading, log: Log) -> Iterator[Finding]:
    """3: handed out while an ack of it was pending in somebody's open transaction, whatever its deadline."""
    for seq, acks in reading.acks.items():
        for _, ack in acks:
            if ack.transaction is None:
                continue
            for again in reading.handed[seq]:
                event = again.event
                if event.called <= ack.answered or event.answered >= ack.held_until:
                    continue
                if event.transaction is ack.transaction or reading.moved(ack.called, event.answered):
                    continue
                yield Finding(
                    "delivered beside an open ack",
                    f"message {seq} came to {event.session} at {event.called:.3f} while {ack.session}, who had acked it at "
                    f"{ack.called:.3f}, was in {ack.transaction} until {ack.held_until:.3f}",
                    event.called,
                    reading.plan.name,
                    (seq,),
                    (ack, event),
                )


def never_sent(reading: Reading, log: Log) -> Iterator[Finding]:
    """6: what was rolled back, not yet committed, or never sent at all; or with other contents."""
    for seq, handed in reading.handed.items():
        message = log.get(seq)
        first = handed[0].event
        if message is None or not message.is_committed:
            text = (
                f"message {seq} came although its send was rolled back" if message else f"message {seq} was never sent"
            )
            yield Finding("rolled back, and delivered", text, first.called, reading.plan.name, (seq,), (first,))
            continue
        if first.answered < message.seen_from:
            text = (
                f"message {seq} came at {first.answered:.3f}, before its commit was called at {message.seen_from:.3f}"
            )
            yield Finding("delivered before its commit", text, first.called, reading.plan.name, (seq,), (first,))
        for h in handed:
            if h.message.data != message.sent.data:
                text = f"message {seq} came as {h.message.data}, sent as {message.sent.data}"
                yield Finding("other contents", text, h.event.called, reading.plan.name, (seq,), (h.event,))
                break


def lost(reading: Reading, log: Log) -> Iterator[Finding]:
    """2: committed, never finished, and nobody asked for that; seen when nothing comes any more."""
    newest: dict[str | None, int] = defaultdict(int)
    for seq, m in log.items():
        if m.is_committed:
            newest[m.sent.key] = max(newest[m.sent.key], seq)
    left = dict(reading.history.endings[reading.plan.name].left) if reading.plan.name in reading.history.endings else {}
    for seq, message in log.items():
        key = message.sent.key
        if not message.is_committed or not reading.plan.passes(key):
            continue
        if reading.preset.upsert and key is not None and newest[key] > seq:
            continue
        if any(finished(reading, message, seek) for seek in last_seeks(reading)):
            continue
        where = left.get(seq, "nowhere to be found")
        yield Finding(
            "lost",
            f"message {seq} (key {key}), sent by {message.events[0].session} and committed at {message.seen_by:.3f}, "
            f"was never finished: {where}",
            reading.history.drained_at,
            reading.plan.name,
            (seq,),
            tuple(message.events[:1]),
        )


def last_seeks(reading: Reading) -> list[Event | None]:
    """The seeks that may have been the last one; none: there was none."""
    seeks = reading.seeks
    return [s for s in seeks if not any(o.seen_from > s.seen_by for o in seeks)] or [None]


def finished(reading: Reading, message: Written, seek: Event | None) -> bool:
    """Whether something explains that the message does not come any more, if that seek was the last one."""
    seq, since = message.seq, 0.0
    if seek is not None:
        since = seek.called
        if may_skip(seek, message):
            return True
    if any(a.happened and a.seen_by > since for _, a in reading.acks.get(seq, [])):
        return True
    handed = [h for h in reading.handed.get(seq, []) if h.event.happened]
    if handed and any(e.happened and e.kind in ("ack", "receive") and e.seen_by > since for e in handed[-1].settled):
        return True
    if any(e.seen_by > since and concerns(e, seq) for e in reading.of("discard") if e.happened and e.answer):
        return True
    if reading.maybe_dead(seq, float("inf")) and [e for e in reading.of("purge_dead") if e.happened and e.answer]:
        return True
    ending = reading.history.endings.get(reading.plan.name)
    if ending is not None:
        if seq in ending.dead:
            return True
        asked = ("retain_up_to" in reading.preset.stream) and [x for x in ending.losses if x[0] <= seq <= x[1]]
        if asked:
            return True
    return seek is not None and may_be_removed(reading, seq, seek)


def concerns(event: Event, seq: int) -> bool:
    """Whether an operator's call is about this message: it names it, or names none."""
    return event.asked.get("seqs") is None or seq in event.asked["seqs"]


def may_skip(seek: Event, message: Written) -> bool:
    target = seek.asked["target"]
    if target == "beginning":
        return False
    if target == "end":
        return message.seen_from < seek.seen_by
    return int(target) > message.seq


def may_be_removed(reading: Reading, seq: int, seek: Event) -> bool:
    """Whether it was finished before a seek, and may have been removed before that, so that it cannot come again."""
    if reading.preset.stream.get("retain", "forever") == "forever" and "retain_up_to" not in reading.preset.stream:
        return False
    done = min((a.seen_from for _, a in reading.acks.get(seq, []) if a.happened), default=float("inf"))
    removals = [e for e in reading.history.events if e.kind in ("maintain", "compact") and removes(e)]
    return any(done < r.seen_by and r.called < seek.seen_by for r in removals)


def removes(event: Event) -> bool:
    if event.problem or not event.happened:
        return False
    if event.kind == "compact":
        return bool(event.answer)
    return any(task in ("remove segments", "compact") for task, _, _ in event.answer or [])


def errors(history: History) -> Iterator[Finding]:
    """7: deadlocks, and errors that are not ours."""
    for event in history.events:
        problem = event.problem
        if problem is None or problem.state in LEGAL_STATES or problem.state.startswith("HG"):
            continue
        if problem.state == "55P03" and problem.hint:
            continue
        text = f"{event.session}'s {event.kind} answered {problem.state}: {problem.text}"
        yield Finding("raw error", text, event.answered, event.consumer, tuple(event.seqs), (event,))


CHECKS: tuple[Check, ...] = (after_ack, two_at_once, beside_open_ack, never_sent, lost)
