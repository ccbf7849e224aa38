"""A smaller history with the same finding: what the judge needs for it, what a reader needs, and little else.

What stays in any case: the finding's own calls, all calls about its messages, and what operators did meanwhile. The
rest is left out by delta debugging: messages (out of all calls: a call says how many others it had), sessions,
transactions, calls. A step counts if the judge still gives the same finding, and none that the whole history has not.
A commit stays as long as a call of its transaction does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

from ..judge.check import judge
from ..judge.reading import Violation, removes
from ..presets.preset import Preset
from ..record import Ending, Event, History, TransactionRecord

T = TypeVar("T")

SECONDS = 10.0
ENDS = ("commit", "rollback")
# What all sessions do all the time. Anything else is somebody's interference, and belongs into an explanation.
EVERYDAY = (
    "send", "receive", "ack", "nack", "release", "extend", "heartbeat", "join_workers", "tick", "savepoint", "cancel",
    *ENDS,
)  # fmt: skip
NO_ANSWER = "lost"  # the state of a call after which the connection was gone


class Smaller(NamedTuple):
    """A part of a history, what it is judged by (the finding's consumer alone), and the finding."""

    history: History
    preset: Preset
    finding: Violation


def shrink(
    history: History,
    preset: Preset,
    finding: Violation,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Smaller:
    """The smallest part of the history that is found in that time."""
    end = clock() + seconds
    known = {about(f) for f in judge(history, preset)}
    if finding.consumer is not None:
        preset = replace(preset, consumers=(preset.consumer(finding.consumer),))
    whole = Whole(history, finding)

    def found(messages: Iterable[int], calls: Iterable[Event]) -> Violation | None:
        findings = judge(whole.part(messages, calls), preset)
        if not all(about(f) in known for f in findings):
            return None
        return next((f for f in findings if is_same(f, finding)), None)

    def works(messages: Iterable[int], calls: Iterable[Event]) -> bool:
        return clock() < end and found(messages, calls) is not None

    messages, calls = whole.messages, whole.calls
    before = -1
    while before != len(messages) + len(calls):
        before = len(messages) + len(calls)
        if works(fellows := whole.fellows(), calls):  # as a rule these explain it all
            messages = [m for m in messages if m in fellows]
        messages = _fewer_messages(messages, calls, works)
        for group in (_session, _transaction, _itself):
            calls = _fewer_calls(messages, calls, works, group)
    small = whole.part(messages, calls)
    return Smaller(small, preset, found(messages, calls) or finding)


Works = Callable[[Iterable[int], Iterable[Event]], bool]


def _fewer_messages(messages: list[int], calls: list[Event], works: Works) -> list[int]:
    return fewest(messages, lambda some: works(some, calls))


def _fewer_calls(
    messages: list[int], calls: list[Event], works: Works, group: Callable[[Event], object]
) -> list[Event]:
    groups: dict[object, list[Event]] = {}
    for event in calls:
        groups.setdefault(group(event), []).append(event)
    return list(chain(*fewest(list(groups.values()), lambda some: works(messages, chain(*some)))))


def _session(event: Event) -> object:
    return event.session


def _transaction(event: Event) -> object:
    return event.transaction or event


def _itself(event: Event) -> object:
    return event


def fewest(units: Sequence[T], works: Callable[[list[T]], bool]) -> list[T]:
    """Units of which none can be left out. All of them together work, or nothing does."""
    kept, size = list(units), len(units)
    while kept:
        at, was = 0, len(kept)
        while at < len(kept):
            less = kept[:at] + kept[at + size :]
            if works(less):
                kept = less
            else:
                at += size
        if size == 1 and len(kept) == was:
            break
        size = max(1, size // 2)
    return kept


def about(finding: Violation) -> tuple[str, str | None, tuple[int, ...]]:
    return finding.check, finding.consumer, finding.seqs


def is_same(one: Violation, other: Violation) -> bool:
    """The same check about the same messages because of the same calls."""
    calls = [{(e.session, e.kind, e.called) for e in f.events} for f in (one, other)]
    return about(one) == about(other) and calls[0] == calls[1]


class Whole:
    """A history that parts are taken of. `messages` and `calls` are those that may be left out."""

    def __init__(self, history: History, finding: Violation) -> None:
        self.history = history
        self.finding = finding
        self.named: dict[tuple[str | None, str], int] = {}  # the message of an ack_id
        for event in history.events:
            if event.kind == "receive":
                self.named |= {(event.consumer, m.ack_id): m.seq for m in event.answer or []}
        seqs = {s for e in history.events if e.kind in ("send", "receive") for s in e.seqs}
        self.messages = sorted(seqs - set(finding.seqs))
        self.needed = self.needed_calls()
        self.calls = [e for e in history.events if e not in self.needed and e.kind not in ENDS]

    def needed_calls(self) -> set[Event]:
        """What a reader wants to know."""
        own = set(self.finding.events)
        deliveries = self.deliveries(set(self.finding.seqs))
        near = [e for e in self.history.events if self.is_near(e)]
        own |= {e for e in near if names_any(self.only(e, set(self.finding.seqs), deliveries))}
        start = min((e.called for e in own), default=0.0)
        end = max(self.finding.at, *(e.answered for e in own)) if own else self.finding.at
        return own | {e for e in near if interferes(e) and e.seen_by > start and e.called < end}

    def is_near(self, event: Event) -> bool:
        return self.finding.consumer is None or event.consumer in (None, self.finding.consumer)

    def fellows(self) -> list[int]:
        """Messages that were in a delivery with the finding's: what is done to them may touch these."""
        deliveries = self.deliveries(set(self.finding.seqs))
        return sorted(
            {s for (c, a), s in self.named.items() if (c, a.rpartition(".")[0]) in deliveries} - set(self.finding.seqs)
        )

    def deliveries(self, messages: set[int]) -> set[tuple[str | None, str]]:
        return {(c, a.rpartition(".")[0]) for (c, a), seq in self.named.items() if seq in messages}

    def part(self, messages: Iterable[int], calls: Iterable[Event]) -> History:
        """The history of these messages and the finding's, as far as these calls and the needed ones make it."""
        seqs = set(self.finding.seqs) | set(messages)
        kept = self.needed | set(calls)
        deliveries = self.deliveries(seqs)
        events: list[Event] = []
        for event in self.history.events:
            if event in kept:
                less = self.only(event, seqs, deliveries)
                if names_any(less) or not names_any(event) or event in self.finding.events:
                    events.append(less)
        lived: set[TransactionRecord] = {e.transaction for e in events if e.transaction is not None}
        ends = [e for e in self.history.events if e.kind in ENDS and e.transaction in lived and e not in kept]
        small = copy(self.history)
        small.events = sorted(events + ends, key=lambda e: e.answered)  # as they were written down
        small.transactions = [t for t in self.history.transactions if t in lived]
        sessions = {e.session for e in events}
        small.waits = [w for w in self.history.waits if w.session in sessions]
        small.endings = {c: _ending(e, seqs) for c, e in self.history.endings.items()}
        return small

    def only(self, event: Event, seqs: set[int], deliveries: set[tuple[str | None, str]]) -> Event:
        """The call without what it says about other messages, but with how many these are."""
        asked, answer = dict(event.asked), event.answer
        if event.kind == "send" and answer is not None:
            pairs = [(m, s) for m, s in zip(asked["messages"], answer, strict=True) if s in seqs]
            asked["messages"], answer = [m for m, _ in pairs], [s for _, s in pairs]
            _note(asked, "others", len(event.answer) - len(answer))
        if event.kind == "receive" and answer is not None:
            answer = [m for m in answer if m.seq in seqs]
            _note(asked, "others", len(event.answer) - len(answer))
        if asked.get("acks"):
            asked["acks"] = [a for a in asked["acks"] if self.is_of(event, a, seqs, deliveries)]
            _note(asked, "other_acks", len(event.asked["acks"]) - len(asked["acks"]))
        if asked.get("seqs"):
            asked["seqs"] = [s for s in asked["seqs"] if s in seqs]
        return event if asked == event.asked else replace(event, asked=asked, answer=answer)

    def is_of(self, event: Event, ack: str, seqs: set[int], deliveries: set[tuple[str | None, str]]) -> bool:
        """Whether an ack_id, or the id of a whole delivery, is about these messages."""
        seq = self.named.get((event.consumer, ack))
        if event.kind == "extend" and ack.count(".") == 2:  # the messages of a delivery share its deadline
            return (event.consumer, ack.rpartition(".")[0]) in deliveries
        return (event.consumer, ack) in deliveries if seq is None else seq in seqs


def names_any(event: Event) -> bool:
    """Whether it names a message."""
    return bool(event.seqs or event.asked.get("acks"))


def interferes(event: Event) -> bool:
    """Whether it is no everyday call, and did something."""
    if event.kind in EVERYDAY:
        return False
    if event.problem:
        return event.problem.state == NO_ANSWER
    return removes(event) if event.kind == "maintain" else event.answer != 0


def _note(asked: dict[str, object], name: str, others: int) -> None:
    before = asked.get(name, 0)
    assert isinstance(before, int)
    if others + before:
        asked[name] = others + before


def _ending(ending: Ending, seqs: set[int]) -> Ending:
    left = [(s, why) for s, why in ending.left if s in seqs]
    return replace(ending, dead=ending.dead & seqs, left=left)
