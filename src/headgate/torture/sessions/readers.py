"""Readers: sessions that read the log from mark to mark, as Spark's source does, and keep their place themselves.

A chain begins at a mark; each read goes on where the one before ended. `marks.py` judges what they read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg

from ..presets.preset import STREAM
from ..record import Event, History
from .session import TortureSession


class Mark(dict[str, Any]):
    """A mark, told by where it stands."""

    def __repr__(self) -> str:
        return f"tick {self['tick']}" + (f" pos {self['pos']}" if "pos" in self else "")

    @property
    def text(self) -> str:
        return json.dumps(self)


class ReadSpan(dict[int, str]):
    """What was read between two marks: the data of each seq. `removed` is what was gone by then."""

    removed: tuple[tuple[int, int], ...] = ()

    def __repr__(self) -> str:
        return f"{len(self)} messages {sorted(self)[:20]}, removed {self.removed}"

    def lacks(self, seq: int) -> bool:
        """Whether the engine said that it may be missing."""
        return any(first <= seq < end for first, end in self.removed)


def read_span(db: psycopg.Connection, start: Mark, end: Mark, tasks: int) -> tuple[ReadSpan, list[int]]:
    """Everything between two marks, and what came twice. What was removed is asked last: what is being read is not."""
    span, twice = ReadSpan(), []
    query = "select query from headgate.read_plan(%s, %s, %s, columns => '{seq,data}', tasks => %s)"
    for (task,) in db.execute(query, [STREAM, start.text, end.text, tasks]).fetchall():
        for seq, data in db.execute(task):
            twice += [seq] if seq in span else []
            span[seq] = data
    query = "select lower(r), upper(r) from unnest(headgate.removed_between(%s, %s, %s)) r"
    span.removed = tuple(db.execute(query, [STREAM, start.text, end.text]).fetchall())
    return span, twice


class ReaderSession(TortureSession):
    """Goes on from its mark, now and then reads an old span again, or begins a new chain."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.longest_rest = 0.03
        self.chain = self.chains = 0
        self.at: Mark | None = None
        self.spans: list[tuple[Mark, Mark]] = []

    def state(self) -> Any:
        return self.chain, self.at, list(self.spans)

    def restore(self, state: Any) -> None:
        """What was read is read: a mark holds although the transaction that made it was rolled back. Or it is
        forgotten, as by a reader that crashed."""
        if self.random.random() < 0.5:
            self.chain, self.at, self.spans = state

    def step(self) -> None:
        draw = self.random.random()
        if self.at is None or draw < 0.03:
            self.begin(self.random.choice(("latest", "beginning", "seq")) if self.chains else "beginning")
        elif draw < 0.3 and self.spans:
            start, end = self.random.choice(self.spans)
            self.read(start, end, again=True)
        else:
            self.go_on()

    def begin(self, position: str) -> None:
        """A new chain; the first one of a session begins with everything."""
        if position == "seq":
            position = f"seq:{max((seq for e in self.history.events[-200:] for seq in e.seqs), default=1)}"
        self.chains += 1
        self.chain, self.at = self.chains, None
        event = self.ask("mark", "select headgate.mark(%s, %s)", [STREAM, position], position=position)
        if not event.problem:
            self.at, self.spans = event.answer, []

    def go_on(self) -> None:
        assert self.at is not None
        most = self.random.choice((None, None, 1, 5, 50))
        until: Mark | None = None
        if self.random.random() < 0.2:  # up to an end that was fixed before
            event = self.ask("mark", "select headgate.mark(%s)", [STREAM], position="until")
            until = event.answer
            if event.problem:
                return
            self.rest(0.03)
        if self.random.random() < 0.1:
            position = f"seq:{self.at.get('pos', self.at['floor']) + self.random.randint(1, 30)}"
            query = "select headgate.end_mark(%s, %s, %s)"
            event = self.ask("end_mark", query, [STREAM, self.at.text, position], start=self.at, position=position)
        else:
            query = "select headgate.next_mark(%s, %s, %s, %s)"
            values: list[Any] = [STREAM, self.at.text, most, until.text if until else None]
            event = self.ask("next_mark", query, values, start=self.at, most=most, until=until)
        if event.problem or event.answer == self.at:
            return
        if self.read(self.at, event.answer).problem is None:
            self.spans.append((self.at, event.answer))
            self.at = event.answer

    def read(self, start: Mark, end: Mark, *, again: bool = False) -> Event:
        tasks = self.random.choice((1, 3, 8))
        event = self.history.call(
            self.name,
            "read",
            lambda: read_span(self.db, start, end, tasks),
            transaction=self.transaction,
            chain=(self.name, self.chain),
            start=start,
            end=end,
            again=again,
            tasks=tasks,
        )
        if self.transaction is not None:
            self.steps.append(event)
        return event

    def ask(self, kind: str, query: str, values: list[Any], **asked: Any) -> Event:
        return self.call(kind, query, values, one_mark, chain=(self.name, self.chain), **asked)


class ArchiverSession(ReaderSession):
    """Copies everything, and says how far it is; now and then again what it said before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open, self.longest_rest = 0.0, 1.0  # slow, so that there is something to wait for
        self.begin("beginning")
        self.note()

    def step(self) -> None:
        if self.random.random() < 0.9:
            self.go_on()
        self.note()

    def note(self) -> None:
        mark = self.random.choice(self.spans)[1] if self.spans and self.random.random() < 0.1 else self.at
        assert mark is not None
        values = [STREAM, self.name, "nowhere", mark.text]
        query = "select headgate.note_archive(%s, %s, %s, %s)"
        self.call("note_archive", query, values, len, archive=self.name, mark=mark)
        self.call("look", "select * from headgate.archives", [], len, what="archives")


def one_mark(rows: list[Any]) -> Mark:
    return Mark(rows[0][0])


def finish(db: psycopg.Connection, history: History, paths: Callable[[History], dict[Any, list[Event]]]) -> None:
    """When everybody has gone: each chain to its end, and then all of its spans once more."""
    for chain, path in paths(history).items():
        at = path[-1].asked["end"] if path[-1].kind == "read" else path[-1].answer
        while True:
            query, values = "select headgate.next_mark(%s, %s, 200)", [STREAM, at.text]
            event = history.call(
                "drain",
                "next_mark",
                lambda q=query, v=values: one_mark(db.execute(q, v).fetchall()),  # type: ignore[misc]
                chain=chain,
                start=at,
            )
            if event.problem or event.answer == at:
                break
            read_finally(db, history, chain, at, event.answer, again=False)
            at = event.answer


def read_again(db: psycopg.Connection, history: History, paths: Callable[[History], dict[Any, list[Event]]]) -> None:
    for chain, path in paths(history).items():
        for event in path[1:][:: max(1, len(path) // 40)]:
            read_finally(db, history, chain, event.asked["start"], event.asked["end"], again=True)


def read_finally(db: psycopg.Connection, history: History, chain: Any, start: Mark, end: Mark, *, again: bool) -> None:
    history.call(
        "drain", "read", lambda: read_span(db, start, end, 2), chain=chain, start=start, end=end, again=again, tasks=2
    )
