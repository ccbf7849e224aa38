"""Meetings: one session is stopped at a point of the engine, another one does something, and the first one goes on.

What both were told, and what is left when the stream has been drained, is judged as a random history is. Which points
an operation passes is found by a trace; then each of its stops meets each operation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

from ..judge.check import judge
from ..judge.reading import Violation
from ..presets.preset import Preset
from ..record import COMMITTED, ROLLED_BACK, History
from ..run import drain, look
from ..sessions.session import MessagePool
from .points import Director
from .worlds import CONSUMER, Actor, fresh_stream

# What the second session does: one call alone; or a transaction that is open until the first one has gone on, and is
# seen to be open, or, since it has only begun, is not.
ALONE, COMMITS, ROLLS_BACK = "alone", "in a transaction that commits", "in a transaction that rolls back"
MODES = (ALONE, COMMITS, ROLLS_BACK)

PATIENCE = 0.15  # for a session to end, after which it counts as waiting
HELD = 0.15  # for how long a transaction that another call waits for stays open: longer than most of them wait
LONGEST = 1.0  # that a call may take once nobody is stopped any more
PASSING_ONLY = ("send and receive", "receive one")  # these pass no points but those of others
RENEWED = 150  # meetings, after which the stream is made anew

IN_FLIGHT = """
select f.lane || '.' || coalesce(f.parent, f.delivery) || '.' || f.seq
  from headgate.in_flight f join headgate.consumer c on c.id = f.consumer where c.name = %s
"""


class Stop(NamedTuple):
    """Where an operation is stopped: at a point that it passes, the first time or the second."""

    operation: str
    point: str
    nth: int


class Meeting(NamedTuple):
    world: str
    stop: Stop
    other: str
    mode: str

    def __str__(self) -> str:
        nth = "" if self.stop.nth == 1 else " again"
        return f"{self.world}: {self.stop.operation} stops where {self.stop.point}{nth}; {self.other}, {self.mode}"


@dataclass
class Met:
    """What came of a meeting. `was_there`: the first session did stop."""

    meeting: Meeting
    history: History
    findings: list[Violation]
    was_there: bool


class Stage:
    """A world in a database with the test build, and the sessions that meet in it."""

    def __init__(self, url: str, preset: Preset) -> None:
        self.preset = preset
        self.director = Director(url)
        history = History(preset.name, 1)
        names = ("A", "B", "drain", "late")
        self.a, self.b, self.last, self.late = (Actor(n, url, preset, history, MessagePool(), 0.0) for n in names)
        self.a.late = self.late if "commit the late one" in preset.weights else None
        self.threads = ThreadPoolExecutor(2)
        self.number = 0
        self.is_spoilt = True  # the stream is to be made anew

    def close(self) -> None:
        self.threads.shutdown()
        for session in (self.a, self.b, self.last, self.late, self.director):
            session.db.close()

    def set_the_scene(self) -> History:
        """The state in which sessions meet, written down as the beginning of a history."""
        if self.is_spoilt or self.number % RENEWED == 0:
            fresh_stream(self.last.db, self.preset)
            self.is_spoilt = False
        self.number += 1
        history = History(self.preset.name, self.number)
        for actor in (self.a, self.b, self.last, self.late):
            actor.history, actor.number = history, self.number
        if self.preset.consumers[0].leased:
            self.b.be_seen("join_workers")
        self.a.prepare_scene()
        self.b.share_scene(self.a)
        return history

    def end_the_scene(self, history: History) -> list[Violation]:
        """Everybody settles what is in flight, what is parked is due, and what comes is acked: all must be done."""
        self.late.come_to_an_end()
        history.drained_at = history.now()
        plan = self.preset.consumers[0]
        in_flight = [row[0] for row in self.last.db.execute(IN_FLIGHT, [CONSUMER])]
        self.last.settle_by("ack", CONSUMER, in_flight)
        self.last.of_consumer("retry_now", CONSUMER, [None, True])
        if plan.leased:
            for actor in (self.a, self.b):
                actor.be_seen("leave_workers")
        findings: list[Violation] = []
        for quiet in (2, 12):  # what is missing may only be slow to come
            drain(self.last.db, plan, history, quiet)
            history.endings[CONSUMER] = look(self.last.db, CONSUMER)
            findings = judge(history, self.preset) or judge(without_effect(history), self.preset)
            if not any(f.check == "lost" for f in findings):
                break
        self.last.purge_dead(CONSUMER)
        if plan.leased:
            self.last.be_seen("leave_workers")
        if any(e.kind == "alter_consumer" for e in history.events):
            self.last.alter(ack_wait=plan.ack_wait)
        self.is_spoilt = bool(findings)
        return findings

    def trace(self, operation: str) -> Counter[str]:
        """How often an operation that is alone passes which points."""
        history = self.set_the_scene()
        passed: Counter[str] = Counter()

        def notice(shown: psycopg.errors.Diagnostic) -> None:
            text = shown.message_primary or ""
            if text.startswith("point: "):
                passed[text.removeprefix("point: ")] += 1

        self.a.db.add_notice_handler(notice)
        self.a.db.execute("set torture.trace = on")
        self.a.do(operation)
        self.a.db.execute("set torture.trace = off")
        self.a.db.remove_notice_handler(notice)
        self.end_the_scene(history)
        return passed

    def stops(self, operations: Iterable[str] = ()) -> list[Stop]:
        """Everywhere where these operations, or those of this world, can be stopped."""
        found = []
        for operation in operations or [o for o in self.preset.weights if o not in PASSING_ONLY]:
            for point, times in self.trace(operation).items():
                found += [Stop(operation, point, nth) for nth in range(1, min(times, 2) + 1)]
        return found

    def meet(self, meeting: Meeting, patience: float = PATIENCE) -> Met:
        history = self.set_the_scene()
        a, b, director = self.a, self.b, self.director
        director.shut()
        stop_at = f"{meeting.stop.nth} {meeting.stop.point}"
        a.db.execute("select set_config('torture.stop_at', %s, false)", [stop_at])
        first = self.threads.submit(a.do, meeting.stop.operation)
        was_there = director.see_stop(a.pid, first.done)
        if meeting.mode != ALONE:
            b.transaction = history.begin(b.name, "read committed")
            b.db.execute("begin")
            if meeting.mode == COMMITS:
                time.sleep(0.003)
        second = self.threads.submit(b.do, meeting.other)
        director.see_end(b.pid, second.done, patience)
        director.open()
        let_go = history.now()
        if meeting.mode != ALONE:
            wait([first], HELD)
            second.result()
            b.end(b.state(), outcome_of(b, COMMITTED if meeting.mode == COMMITS else ROLLED_BACK))
        outcomes: list[Future[None]] = [first, second]
        for future in outcomes:
            future.result()
        a.db.execute("set torture.stop_at = ''")
        slow = list(stood_still(history, let_go)) if meeting.mode == ALONE else []
        return Met(meeting, history, self.end_the_scene(history) + slow, was_there)


def outcome_of(actor: Actor, wanted: str) -> str:
    return ROLLED_BACK if any(step.problem for step in actor.steps) else wanted


def stood_still(history: History, since: float) -> Iterator[Violation]:
    """A call that did not come to its end although nobody stopped it any more, and nobody had a transaction open. What
    the machine was busy with others, while these two could have gone on, does not count."""
    busy = sum(event.queued for event in history.events if event.answered > since)
    for event in history.events:
        if event.answered > since + LONGEST + busy:
            text = f"{event.session}'s {event.kind} went on for {event.answered - since:.3f} s"
            yield Violation("stood still", text, event.called, event.consumer, tuple(event.seqs), (event,))


def without_effect(history: History) -> History:
    """The history without what was told to have changed nothing, which therefore explains nothing."""
    settling = ("ack", "nack", "release")
    strict = History(history.preset, history.seed)
    strict.transactions, strict.endings, strict.drained_at = history.transactions, history.endings, history.drained_at
    strict.events = [e for e in history.events if not (e.kind in settling and e.answer and e.answer[0] == 0)]
    return strict


@contextmanager
def stage(url: str, preset: Preset) -> Iterator[Stage]:
    opened = Stage(url, preset)
    try:
        yield opened
    finally:
        opened.close()


def all_meetings(preset: Preset, stops: list[Stop], seed: int) -> list[Meeting]:
    """Each stop with each operation; the seed shifts who is alone, who commits and who rolls back."""
    return [
        Meeting(preset.name, stop, other, MODES[(i + j + seed) % 3])
        for i, stop in enumerate(stops)
        for j, other in enumerate(preset.weights)
    ]
