"""The judge of what settling answers: how many messages, and which, an ack, a nack or a release can have had."""

from __future__ import annotations

from collections.abc import Iterator

from ..record import FIXED, Event
from .choosing import chooses
from .reading import ConsumerHistory, Handed, Log, Violation, names


def wrong_count(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """An answer whose numbers do not add up to what was asked, or count messages that were settled before."""
    for event in reading.of("ack", "nack", "release", "extend"):
        asked = names(event)
        if event.problem or len(set(asked)) < len(asked) or is_trimmed(event):
            continue
        done, stale = event.answer
        handed = reading.named(event)
        if all(a.count(".") == 2 for a in asked):
            if done + stale == len(asked):
                continue
            text = f"which is not {len(asked)}"
        elif event.kind == "ack" and len(asked) == 1:  # a whole delivery: what is left of it
            left = [h for h in handed if not any(_is_over(reading, h, e, event) for e in h.settled)]
            if not handed or done <= len(left) or any(is_trimmed(h.event) for h in handed):
                continue
            text = f"and at most {len(left)} were left"
        else:
            continue
        yield Violation(
            "wrong count",
            f"{event.session}'s {event.kind} of {', '.join(asked[:8])} at {event.called:.3f} answered {done} and "
            f"{stale} stale, {text}",
            event.called,
            reading.plan.name,
            tuple(h.message.seq for h in handed),
            (event,),
        )


def is_trimmed(event: Event) -> bool:
    """Whether messages were left out of it, to make the history small: then its numbers say nothing."""
    return "others" in event.asked or "other_acks" in event.asked


def _is_over(reading: ConsumerHistory, handed: Handed, settling: Event, event: Event) -> bool:
    """Whether the message had surely left its delivery by `settling` when `event` was called."""
    if settling.problem:
        return False
    if settling.kind == "receive":
        is_taken = reading.surely_acked(handed, settling)
    else:
        is_taken = settling.answer[1] == 0 and handed.message.ack_id in names(settling)
    return is_taken and _is_before(settling, event)


def _is_before(first: Event, second: Event) -> bool:
    """Whether the second call must have seen what the first did."""
    if first.transaction is not None and first.transaction is second.transaction:
        return first.undone is None and first.called < second.called
    return first.happened and first.seen_by < second.called


def acked_behind(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """Where order is kept: an ack counted although an earlier message of its key in the same delivery had been given
    back, and this one with it."""
    for failure in reading.of("nack", "release", "extend"):
        if failure.problem or failure.answer[1] or (failure.kind == "extend" and failure.asked["by"] > 0):
            continue
        named = reading.named(failure)
        for failed in named:
            if failed.message.key is None:
                continue
            for handed in reading.fellows(failed):
                if handed.message.seq <= failed.message.seq or being_settled(handed, failure):
                    continue
                if failure.kind == "extend" and handed in named:
                    continue  # expired itself: acked late
                if any(e.called + max(e.asked["by"], 0) < failure.answered for e in handed.extended):
                    continue  # may have expired before, and was in the delivery no more
                for ack in handed.settled:
                    if ack.kind != "ack" or ack.problem or ack.answer[1] or handed.message.ack_id not in names(ack):
                        continue
                    if not ack.happened or not _is_before(failure, ack):
                        continue
                    seqs = (failed.message.seq, handed.message.seq)
                    yield Violation(
                        "acked behind a failed one",
                        f"message {seqs[1]} of key {failed.message.key} was acked by {ack.session} at "
                        f"{ack.called:.3f}, and message {seqs[0]} of the same delivery had been given back by "
                        f"{failure.session}'s {failure.kind} at {failure.called:.3f}",
                        ack.called,
                        reading.plan.name,
                        seqs,
                        (failure, ack),
                    )


def being_settled(handed: Handed, failure: Event) -> bool:
    """Whether another open transaction had it in flight when one before it failed: then it does not come along, and
    stays where it was if that transaction is undone."""
    return any(
        e.transaction is not None
        and e.transaction is not failure.transaction
        and e.called < failure.answered
        and e.transaction.ended > failure.called
        for e in handed.settled + handed.extended
    )


def acked_twice(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """An ack_id for which two acks, both committed, were told that they were the one."""
    for handed in reading.by_ack.values():
        acks = [e for e in handed.settled if e.kind == "ack" and e.happened and e.answer[1] == 0]
        acks = [e for e in acks if handed.message.ack_id in names(e)]
        if len(acks) > 1:
            text = (
                f"{handed.message.ack_id} was acked at {', '.join(f'{e.called:.3f}' for e in acks)}, and none was stale"
            )
            yield Violation("acked twice", text, acks[1].called, reading.plan.name, (handed.message.seq,), tuple(acks))


def false_stale(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """An ack that was called stale although its messages were surely the caller's."""
    for event in reading.of("ack"):
        if event.problem or event.answer[1] == 0:
            continue
        if not all(a in reading.by_ack or a in reading.by_delivery for a in names(event)):
            continue
        handed = reading.named(event)
        if all(surely_held(reading, h, event) for h in handed):
            yield Violation(
                "called stale",
                f"{event.session}'s ack at {event.called:.3f} answered {event.answer} for messages that it surely had",
                event.called,
                reading.plan.name,
                tuple(h.message.seq for h in handed),
                (event,),
            )


# Calls that may hold messages, parked ones too, and what takes them away for good.
HOLDING = ("receive", "maintain", "retry_now", "compact", "extend", "nack", "release", "ack")
TAKING = ("seek", "discard", "redrive", "set_lanes", "recreate_stream")


def late_stale(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """An ack after the deadline that was called stale although nobody else had got the message."""
    plan, preset = reading.plan, reading.preset
    if plan.ordered or plan.leased or preset.upsert or plan.max_deliver is not None or preset.loses:
        return
    everything = [e for e in reading.history.events if e.consumer in (None, plan.name)]
    if reading.history.faults or any(e.kind in TAKING for e in everything):
        return
    for event in reading.of("ack"):
        asked = names(event)
        if event.problem or event.answer[0] or event.undone is not None or is_trimmed(event):
            continue
        if event.transaction is not None and event.transaction.isolation in FIXED:
            continue
        if not asked or not all(a in reading.by_ack for a in asked):
            continue
        holders = [e for e in everything if e is not event and e.kind in HOLDING and e.called < event.answered]
        if any(e.held_until >= event.called for e in holders):
            continue
        handed = reading.named(event)
        if all(surely_held(reading, h, event) for h in handed):
            continue  # false_stale judges these
        if all(is_still_its_own(reading, h, event) for h in handed):
            yield Violation(
                "called stale",
                f"{event.session}'s late ack at {event.called:.3f} answered {event.answer}, and nobody else had got it",
                event.called,
                plan.name,
                tuple(h.message.seq for h in handed),
                (event,),
            )


def is_still_its_own(reading: ConsumerHistory, handed: Handed, event: Event) -> bool:
    """Whether the message surely was with its worker, or parked, and not with another since."""
    first = handed.event
    if not first.happened or first.seen_by > event.called or any(e is not event for e in handed.settled):
        return False
    others = [h.event for h in reading.handed[handed.message.seq] if h is not handed]
    if any(o.answered >= first.called and o.called < event.answered for o in others):
        return False
    unclear = [e for e in reading.history.events if e.kind == "receive" and e.problem]
    return not any(e.answered >= first.called and e.called < event.answered for e in unclear)


def surely_held(reading: ConsumerHistory, handed: Handed, event: Event) -> bool:
    mine = handed.event.transaction is not None and handed.event.transaction is event.transaction
    if not mine and (not handed.event.happened or handed.event.seen_by > event.called):
        return False
    if handed.event.undone is not None:
        return False
    others = [e for h in reading.fellows(handed) for e in h.settled if e is not event and e.called < event.answered]
    if others or reading.moved(handed.event.called, event.answered) or reading.of("seek"):
        return False
    message = handed.message
    if any(chooses(e, message.seq, message.key) and e.called < event.answered for e in reading.of("discard")):
        return False
    if any(e.called < event.answered and e.seen_by > event.called for e in handed.extended):
        return False  # who moves its deadline at this moment has it
    if reading.plan.leased or reading.clock_jumps:
        return False
    again = reading.handed.get(message.seq, [])  # (whether that may be, others judge)
    if any(handed.event.called < h.event.called < event.answered for h in again):
        return False
    return event.answered < reading.live_until(handed, event.called)
