"""The judge: pure functions over a finished history. Each check answers what is certainly wrong, and nothing else:
where calls overlapped, the engine may have taken either one first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from ..presets.preset import Preset
from ..record import Event, History
from .answers import acked_behind, acked_twice, false_stale, late_stale, wrong_count
from .choosing import discards, may_skip
from .discarding import after_discard, discarded_too_few, discarded_too_many
from .epochs import newest_stream
from .filtering import against_filter
from .floors import floor_moved_back, floor_too_high, miscounted, slow_looks, wrong_loss, wrong_state
from .pacing import over_cap, over_pace, too_early
from .readers import misread
from .reading import ACKING, ConsumerHistory, Handed, Log, Violation, Written, written
from .upserts import older_version, wrong_append, wrong_value
from .waiting import stalled, stopped

GONE = ("XX000", "42P01", "42883")  # a relation or function does not exist any more
LEGAL_STATES = ("40001",)  # and our own: HG…, and 55P03 with a hint


Check = Callable[[ConsumerHistory, Log], Iterator[Violation]]


def judge(history: History, preset: Preset) -> list[Violation]:
    """Everything that is wrong with a history, in the order in which it showed."""
    raw = [*errors(history)]
    history = newest_stream(history)
    log = written(history)
    findings = [
        *raw,
        *sent_twice(history, preset, log),
        *wrong_answers(history, preset, log),
        *stopped(history),
        *misread(history, preset, log),
        *slow_looks(history),
    ]
    for plan in preset.consumers:
        reading = ConsumerHistory(history, preset, plan)
        for check in CHECKS:
            findings += check(reading, log)
    return sorted(findings, key=lambda f: f.at)


def after_ack(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """1: delivered although an ack of it had been answered before the receive was called."""
    for seq, acks in reading.acks.items():
        for _, ack in acks:
            if not ack.happened:
                continue
            for again in reading.handed[seq]:
                receive = again.event
                if receive.called <= ack.seen_by or receive is ack or reading.may_come_again(seq, ack, receive):
                    continue
                yield Violation(
                    "delivered after its ack",
                    f"message {seq} came to {receive.session} at {receive.called:.3f}; {ack.session} had acked it at "
                    f"{ack.seen_by:.3f}",
                    receive.called,
                    reading.plan.name,
                    (seq,),
                    (ack, receive),
                )
                break


def two_at_once(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """3: handed out again although the earlier delivery had not expired and was not given back."""
    for seq, handed in reading.handed.items():
        for first in handed:
            for second in handed:
                event = second.event
                if event.called <= first.event.answered or second is first:
                    continue
                if event.answered >= reading.live_until(first, event.called) or reading.given_back(first, event):
                    continue
                same = event.transaction is not None and event.transaction is first.event.transaction
                if same and (reading.clock_jumps or event.answered >= reading.deadline(first, event.called)):
                    continue  # inside its own transaction it may have expired
                if any(e.possible and e.kind in ACKING for e in first.settled):
                    continue  # the first check judges these
                yield Violation(
                    "two live deliveries",
                    f"message {seq} was with {first.event.session} ({first.message.ack_id}) until "
                    f"{reading.live_until(first, event.called):.3f}, and came to {event.session} at {event.called:.3f}",
                    event.called,
                    reading.plan.name,
                    (seq,),
                    (first.event, event),
                )


def beside_open_ack(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
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
                yield Violation(
                    "delivered beside an open ack",
                    f"message {seq} came to {event.session} at {event.called:.3f}; {ack.session}, who had acked it at "
                    f"{ack.called:.3f}, was in {ack.transaction} until {ack.held_until:.3f}",
                    event.called,
                    reading.plan.name,
                    (seq,),
                    (ack, event),
                )


def never_sent(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """6: what was rolled back, not yet committed, or never sent at all; or with other contents."""
    for seq, handed in reading.handed.items():
        message = log.get(seq)
        first = handed[0].event
        if message is None or not message.is_possible:
            text = (
                f"message {seq} came although its send was rolled back" if message else f"message {seq} was never sent"
            )
            yield Violation("rolled back, and delivered", text, first.called, reading.plan.name, (seq,), (first,))
            continue
        if first.answered < message.seen_from:
            text = (
                f"message {seq} came at {first.answered:.3f}, before its commit was called at {message.seen_from:.3f}"
            )
            yield Violation("delivered before its commit", text, first.called, reading.plan.name, (seq,), (first,))
        for h in handed:
            if h.message.data != message.sent.data:
                text = f"message {seq} came as {h.message.data}, sent as {message.sent.data}"
                yield Violation("other contents", text, h.event.called, reading.plan.name, (seq,), (h.event,))
                break


def lost(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """2: committed, never finished, and nobody asked for that; seen when nothing comes any more."""
    newest: dict[str | None, int] = defaultdict(int)
    for seq, m in log.items():
        if m.is_possible:
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
        yield Violation(
            "lost",
            f"message {seq} (key {key}), sent by {message.events[0].session} and committed at {message.seen_by:.3f}, "
            f"was never finished: {where}",
            reading.history.drained_at,
            reading.plan.name,
            (seq,),
            tuple(message.events[:1]),
        )


def last_seeks(reading: ConsumerHistory) -> list[Event | None]:
    """The seeks that may have been the last one; none: there was none."""
    sure = [s for s in reading.seeks if s.happened]
    found: list[Event | None] = [s for s in reading.seeks if not any(o.seen_from > s.seen_by for o in sure)]
    return found if sure else [*found, None]


def finished(reading: ConsumerHistory, message: Written, seek: Event | None) -> bool:
    """Whether something explains that the message does not come any more, if that seek was the last one."""
    seq = message.seq
    since = reading.given_back_at(seq)
    if seek is not None:
        since = max(since, seek.called)
        if may_skip(seek, message):
            return True
    if any(a.happened and a.seen_by > since for _, a in reading.acks.get(seq, [])):
        return True
    handed = [h for h in reading.handed.get(seq, []) if h.event.possible]
    sure = [h for h in handed if h.event.happened]
    # of those that overlap, all; and those behind which it only may have come again
    last = [h for h in handed if not any(o.event.called > h.event.answered for o in sure)]
    if any(e.happened and e.kind in ACKING and e.seen_by > since for h in last for e in h.settled):
        return True
    if any(e.unknown and e.kind in ACKING and e.seen_by > since for h in handed for e in h.settled):
        return True
    if any(e.seen_by > since and discards(e, message) for e in reading.of("discard") if e.effective):
        return True
    if reading.maybe_dead(seq, float("inf")) and any(e.effective for e in reading.of("purge_dead")):
        return True
    ending = reading.history.endings.get(reading.plan.name)
    if ending is not None:
        if seq in ending.dead:
            return True
        asked = reading.preset.loses and [x for x in ending.losses if x[0] <= seq <= x[1]]
        if asked:
            return True
    return seek is not None and reading.may_be_removed(message, seek)


def errors(history: History) -> Iterator[Violation]:
    """7: deadlocks, and errors that are not ours."""
    for event in history.events:
        problem = event.problem
        if problem is None or problem.state in LEGAL_STATES or problem.state.startswith("HG"):
            continue
        if problem.state == "55P03" and problem.hint:
            continue
        if problem.state == "57014" and "user request" in problem.text:  # an operator has cancelled it
            continue
        if problem.state in GONE and any(e.kind == "recreate_stream" for e in overlapping(history, event)):
            continue  # known: whoever waits while a stream is dropped is told so in PostgreSQL's own words
        if problem.state in ("53100", "58030") and any(f.kind == "fill" for f in history.faults):
            continue
        if event.lost and history.faults:
            continue
        if problem.state == "55P03" and any(removed_meanwhile(history, event)):
            continue
        said = [x for x in problem.text.splitlines() if x.startswith("DETAIL") or x == problem.text.splitlines()[0]]
        text = f"{event.session}'s {event.kind} at {event.called:.3f} answered {problem.state}: {' '.join(said)}"
        yield Violation("raw error", text, event.answered, event.consumer, tuple(event.seqs), (event,))


def removed_meanwhile(history: History, event: Event) -> Iterator[Event]:
    """Removals in open transactions, which hold the segments' tables until they end: they should be called alone."""
    return (
        e
        for e in history.events
        if e.kind in ("maintain", "compact") and e.transaction is not None and e.answer
        if e.called < event.answered and e.transaction.ended > event.called
    )


def overlapping(history: History, event: Event) -> Iterator[Event]:
    return (e for e in history.events if e.called < event.answered and e.answered > event.called)


def out_of_order(reading: ConsumerHistory, log: Log) -> Iterator[Violation]:
    """4: handed out although an earlier message of its key was not finished."""
    if not reading.plan.ordered or reading.preset.upsert:
        return
    for key, messages in by_key(log).items():
        if not reading.plan.passes(key):
            continue
        judged: dict[int, int] = {}  # of each receive, up to which message of the key those before it were looked at
        for place, message in enumerate(messages):
            for handed in reading.handed.get(message.seq, []):
                seek = epoch(reading, handed.event)
                if isinstance(seek, str):
                    continue
                start, judged[id(handed.event)] = judged.get(id(handed.event), 0), place
                for earlier in messages[start:place]:
                    if may_be_over(reading, earlier, handed, seek):
                        continue
                    event = handed.event
                    yield Violation(
                        "out of order",
                        f"message {message.seq} of key {key} came to {event.session} at {event.called:.3f} before "
                        f"message {earlier.seq} was finished",
                        event.called,
                        reading.plan.name,
                        (earlier.seq, message.seq),
                        (event,),
                    )
                    break


def by_key(log: Log) -> dict[str, list[Written]]:
    """The messages of each key in the order in which its only writer sent them, but for those of which nobody knows
    when they were sent."""
    keys: dict[str, list[Written]] = defaultdict(list)
    for message in log.values():
        if message.sent.key is not None and message.is_committed and not message.is_uncertain:
            keys[message.sent.key].append(message)
    for messages in keys.values():
        messages.sort(key=lambda m: (first_sent(m), m.seq))
    return keys


def first_sent(message: Written) -> float:
    return min(e.called for e in message.events if e.possible)


def epoch(reading: ConsumerHistory, event: Event) -> Event | str | None:
    """The last seek before a receive; "unclear" when one may have been meanwhile, or may not."""
    before = [s for s in reading.seeks if s.seen_from < event.answered]
    inside = [s for s in reading.of("seek") if s.transaction is not None and s.transaction is event.transaction]
    if inside or any(s.seen_by > event.called or s.unknown for s in before):
        return "unclear"
    last = max(before, key=lambda s: s.seen_by, default=None)
    if last is not None and any(o is not last and o.seen_by > last.seen_from for o in before):
        return "unclear"
    return last


def may_be_over(reading: ConsumerHistory, earlier: Written, handed: Handed, seek: Event | None) -> bool:
    """Whether the earlier message may have been finished when the later one was handed out, or comes with it."""
    event, since = handed.event, 0.0
    if seek is not None:
        since = seek.called
        if may_skip(seek, earlier) or reading.may_be_removed(earlier, seek):
            return True
    for other in reading.handed.get(earlier.seq, []):
        if other.event is event and other.place < handed.place:
            return True
        for e in other.settled:
            inside = e.transaction is not None and e.transaction is event.transaction
            if e.kind in ACKING and e.called > since:
                if inside and e.called < event.answered:
                    return True
                if e.possible and e.seen_from < event.answered:
                    return True
    if reading.maybe_dead(earlier.seq, event.answered):
        return True
    if any(discards(e, earlier) and e.called < event.answered for e in reading.of("discard") if e.answer or e.unknown):
        return True
    ending = reading.history.endings.get(reading.plan.name)
    asked = reading.preset.loses and ending is not None
    return bool(asked and ending and [x for x in ending.losses if x[0] <= earlier.seq <= x[1]])


def sent_twice(history: History, preset: Preset, log: Log) -> Iterator[Violation]:
    """An id of which two messages were appended."""
    if preset.upsert:
        return
    ids: dict[str, set[int]] = defaultdict(set)
    for seq, message in log.items():
        if message.sent.id is not None and message.is_committed:
            ids[message.sent.id].add(seq)
    for id, seqs in ids.items():
        if len(seqs) > 1:
            yield Violation("an id used twice", f"id {id} has messages {sorted(seqs)}", 0.0, None, tuple(sorted(seqs)))


def wrong_answers(history: History, preset: Preset, log: Log) -> Iterator[Violation]:
    """A send was told that the message with its id is another one."""
    if preset.upsert:  # what changes nothing is answered with the version that is there
        return
    for event in history.events:
        if event.kind != "send" or not event.happened:
            continue
        for sent, seq in zip(event.asked["messages"], event.answer, strict=True):
            if sent.id is not None and log[seq].sent.id != sent.id:
                text = f"{event.session}'s send of id {sent.id} was answered {seq}, which has id {log[seq].sent.id}"
                yield Violation("another message's seq", text, event.called, None, (seq,), (event,))


CHECKS: tuple[Check, ...] = (
    after_ack,
    two_at_once,
    beside_open_ack,
    never_sent,
    lost,
    out_of_order,
    older_version,
    wrong_value,
    false_stale,
    late_stale,
    wrong_append,
    stalled,
    acked_twice,
    wrong_count,
    acked_behind,
    too_early,
    over_cap,
    over_pace,
    against_filter,
    floor_too_high,
    floor_moved_back,
    miscounted,
    wrong_state,
    wrong_loss,
    after_discard,
    discarded_too_many,
    discarded_too_few,
)
