"""The judge of readers: a chain of marks reads everything that was committed once, a transaction's messages together,
and two marks always give the same messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ..presets.preset import Preset
from ..record import Event, History
from ..sessions.readers import Mark
from .reading import Log, Violation, Written

LATEST_WAITS = 1.9  # somebody's open transaction holds the stream's row: after 2 seconds there is no newer tick

Path = list[Event]  # the call of mark(), and the reads that follow one another


def paths(history: History) -> dict[Any, Path]:
    """The chains. One that was set back, because its reader forgot where it was, goes on from there."""
    found: dict[Any, Path] = {}
    for event in sorted(history.events, key=lambda e: e.answered):
        if event.problem:
            continue
        if event.kind == "mark" and event.asked["position"] != "until":
            found[event.asked["chain"]] = [event]
        elif event.kind == "read" and not event.asked["again"]:
            path = found[event.asked["chain"]]
            while len(path) > 1 and path[-1].asked["end"] != event.asked["start"]:
                path.pop()
            path.append(event)
    return found


def reads(history: History) -> list[Event]:
    return [e for e in history.events if e.kind == "read" and not e.problem]


def misread(history: History, preset: Preset, log: Log) -> Iterator[Violation]:
    """Everything that is wrong with what readers read."""
    yield from never_written(history, log)
    yield from read_otherwise(history, preset, log)
    yield from not_archived(history)
    for path in paths(history).values():
        chain = Chain(history, preset, log, path)
        yield from chain.read_twice()
        yield from chain.missed()
        yield from chain.too_late()
        yield from chain.partly_visible()


def never_written(history: History, log: Log) -> Iterator[Violation]:
    """What was rolled back, not yet committed, or never sent; or with other contents."""
    for event in reads(history):
        span, _ = event.answer
        for seq, data in span.items():
            message = log.get(seq)
            if message is None or not message.is_committed:
                text = f"{event.session} read message {seq}, which was {'rolled back' if message else 'never sent'}"
                yield Violation("rolled back, and read", text, event.called, None, (seq,), (event,))
            elif event.answered < message.seen_from:
                text = f"{event.session} read message {seq} at {event.answered:.3f}, before {message.seen_from:.3f}"
                yield Violation("read before its commit", text, event.called, None, (seq,), (event,))
            elif data != message.sent.data:
                text = f"message {seq} was read as {data}, sent as {message.sent.data}"
                yield Violation("other contents read", text, event.called, None, (seq,), (event,))


def not_archived(history: History) -> Iterator[Violation]:
    """Removed although an archive had still to copy it."""
    archives = {e.session for e in history.events if e.kind == "note_archive"}
    for chain, path in paths(history).items():
        for event in path[1:]:
            if chain[0] in archives and event.answer[0].removed:
                text = f"{chain[0]} came too late for {event.answer[0].removed} at {event.called:.3f}"
                yield Violation("removed before it was archived", text, event.called, None, (), (event,))


def read_otherwise(history: History, preset: Preset, log: Log) -> Iterator[Violation]:
    """The same two marks gave other messages than before."""
    firsts: dict[tuple[str, str], Event] = {}
    for event in sorted(reads(history), key=lambda e: e.called):
        first = firsts.setdefault((event.asked["start"].text, event.asked["end"].text), event)
        a, b = first.answer[0], event.answer[0]
        gained = {seq for seq in b.keys() - a.keys() if not a.lacks(seq)}
        lost = {seq for seq in a.keys() - b.keys() if not b.lacks(seq) and not is_superseded(preset, log, seq)}
        if gained or lost:
            yield Violation(
                "read otherwise",
                f"between {event.asked['start']} and {event.asked['end']} {event.session} read at {event.called:.3f} "
                f"also {sorted(gained)}, and no more {sorted(lost)}",
                event.called,
                None,
                tuple(sorted(gained | lost)),
                (first, event),
            )


def is_superseded(preset: Preset, log: Log, seq: int) -> bool:
    """Whether it may be gone because its key has a newer version."""
    if not preset.upsert or seq not in log or log[seq].sent.key is None:
        return False
    return any(o.seq > seq and o.sent.key == log[seq].sent.key and o.is_committed for o in log.values())


class Chain:
    """What one chain read, and when."""

    def __init__(self, history: History, preset: Preset, log: Log, path: Path) -> None:
        self.history, self.preset, self.log = history, preset, log
        self.begin, self.path = path[0], path[1:]
        self.at: dict[int, list[Event]] = defaultdict(list)
        for event in self.path:
            for seq in event.answer[0]:
                self.at[seq].append(event)

    @property
    def marked(self) -> Mark:
        mark: Mark = self.begin.answer
        return mark

    def lacks(self, seq: int) -> bool:
        return any(e.answer[0].lacks(seq) for e in self.path) or is_superseded(self.preset, self.log, seq)

    def is_due(self, message: Written) -> bool:
        """Whether it surely is behind the mark that the chain began with."""
        if not message.is_committed:
            return False
        return message.seq > self.marked["lo"] if self.marked["tick"] == 0 else message.seen_from > self.begin.answered

    def is_passed(self, message: Written, read: Event) -> bool:
        """Whether it surely was before that mark. A chain that begins at a seq leaves out what lies below in its first
        span; what becomes visible to it later may have any seq."""
        if self.marked["tick"] == 0:
            return bool(read.asked["start"] == self.marked and message.seq <= self.marked["lo"])
        return self.is_fresh(self.begin) and message.seen_by < self.begin.called

    def is_fresh(self, event: Event) -> bool:
        """Whether the mark that a call answered must hold everything that was committed before."""
        return event.transaction is None and event.took < LATEST_WAITS

    @property
    def ends(self) -> list[Event]:
        """Calls that found nothing more when everything was over."""
        asked = [e for e in self.history.events if e.kind == "next_mark" and not e.problem and e.session == "drain"]
        mine = [e for e in asked if e.asked["chain"] == self.begin.asked["chain"]]
        return [e for e in mine if e.answer == e.asked["start"]]

    def read_twice(self) -> Iterator[Violation]:
        for seq, events in self.at.items():
            again = [e for e in events if seq in e.answer[1]]
            if len(events) > 1 or again or (seq in self.log and self.is_passed(self.log[seq], events[0])):
                spans = ", ".join(f"{e.asked['start']} to {e.asked['end']} at {e.called:.3f}" for e in events)
                text = (
                    f"message {seq} was read by {self.begin.session} between {spans}; its chain began at {self.marked}"
                )
                yield Violation("read twice", text, events[-1].called, None, (seq,), (self.begin, *events))

    def missed(self) -> Iterator[Violation]:
        if not self.ends:
            return
        for seq, message in self.log.items():
            if seq not in self.at and self.is_due(message) and not self.lacks(seq):
                text = (
                    f"message {seq}, committed at {message.seen_by:.3f}, was not read by {self.begin.session}, whose "
                    f"chain began at {self.marked} and went on to {self.ends[-1].answer}"
                )
                events = (self.begin, *message.events, *self.around(seq), self.ends[-1])
                yield Violation("missed", text, self.ends[-1].called, None, (seq,), events)

    def around(self, seq: int) -> list[Event]:
        """Reads whose bounds the message lies between."""
        return [e for e in self.path if e.asked["start"]["floor"] < seq <= e.asked["end"]["hi"]][:20]

    def too_late(self) -> Iterator[Violation]:
        """A mark that was asked for after a commit lies before what it committed."""
        for event in self.history.events:
            if event.kind != "next_mark" or event.problem or event.asked["chain"] != self.begin.asked["chain"]:
                continue
            if event.asked.get("until") or "pos" in event.asked["start"] or not self.is_fresh(event):
                continue
            for seq, at in self.at.items():
                message = self.log.get(seq)
                if message is None or message.seen_by >= event.called:
                    continue
                if at[0].asked["end"]["tick"] > event.answer["tick"]:
                    text = (
                        f"message {seq} was committed at {message.seen_by:.3f} and lies behind {event.answer}, which "
                        f"{event.session} was given at {event.called:.3f}"
                    )
                    yield Violation("not in the latest", text, event.called, None, (seq,), (event, at[0]))

    def partly_visible(self) -> Iterator[Violation]:
        """Messages of one transaction lie in spans that end at different ticks."""
        for seqs in together(self.log):
            ticks: dict[int | None, int] = {}
            for seq in seqs:
                if seq in self.at or not (self.lacks(seq) or self.marked["tick"] == 0):
                    ticks[self.at[seq][0].asked["end"]["tick"] if seq in self.at else None] = seq
            if len(ticks) > 1 and (None not in ticks or self.ends):
                text = f"messages of one transaction were read by {self.begin.session} at different ticks: {ticks}"
                events = tuple(e for seq in ticks.values() for e in self.at.get(seq, []))
                at = max(e.called for e in events)
                yield Violation("partly visible", text, at, None, tuple(ticks.values()), events)


def together(log: Log) -> list[list[int]]:
    """The seqs that became visible at once: of each transaction, or of each call that was one by itself."""
    found: dict[int, list[int]] = defaultdict(list)
    for seq, message in log.items():
        units = {id(e.transaction or e) for e in message.events if e.happened}
        if len(units) == 1:
            found[units.pop()].append(seq)
    return [seqs for seqs in found.values() if len(seqs) > 1]
