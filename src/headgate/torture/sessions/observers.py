"""Lookers: sessions that ask how things are, beside the traffic; and what is there when nothing moves any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg

from ..presets.preset import STREAM, Preset
from ..record import History
from .session import TortureSession

COUNTS = """
select name, floor, unread, exact, in_flight, parked, dead, lost
  from headgate.consumers where stream = %s
"""
ALL = 2147483647

# What people ask without harm, and the values that it takes.
QUESTIONS: dict[str, tuple[str, Callable[[TortureSession, str], list[Any]]]] = {
    "peek": (
        "select seq, state from headgate.peek(%s, %s, 20, %s)",
        lambda s, c: [STREAM, c, s.random.random() < 0.5],
    ),
    "peek states": (
        "select seq, state from headgate.peek(%s, %s, 20, states => %s)",
        lambda s, c: [STREAM, c, s.random.sample(("available", "delivered", "parked", "done", "dead", "discarded"), 2)],
    ),
    "messages": (
        "select seq, key from headgate.messages(%s, 20, %s)",
        lambda s, c: [STREAM, s.random.random() < 0.5],
    ),
    "message_states": (
        "select consumer, state from headgate.message_states(%s, %s)",
        lambda s, c: [STREAM, max((seq for e in s.history.events[-50:] for seq in e.seqs), default=1)],
    ),
    "dead_letters": ("select seq from headgate.dead_letters(%s, %s)", lambda s, c: [STREAM, c]),
    "attempts": ("select seq, attempt, error from headgate.attempts(%s, consumer => %s)", lambda s, c: [STREAM, c]),
    "message_life": (
        "select at, event from headgate.message_life(%s, %s)",
        lambda s, c: [STREAM, max((seq for e in s.history.events[-200:] for seq in e.seqs), default=1)],
    ),
    "archives": ("select * from headgate.archives", lambda s, c: []),
    "vitals": ("select * from headgate.vitals()", lambda s, c: []),
    "consumers": ("select name, floor, sampled_at from headgate.consumers", lambda s, c: []),
    "streams": ("select name, messages, is_full from headgate.streams", lambda s, c: []),
    "channels": ("select channel, state, in_flight, parked from headgate.channels", lambda s, c: []),
    "channel_backlog": (
        "select name, waiting, exact from headgate.channel_backlog(%s, %s, %s, 20)",
        lambda s, c: [STREAM, c, s.random.choice(("waiting", "oldest", "name"))],
    ),
    "deliveries": ("select lane, id, seqs from headgate.deliveries", lambda s, c: []),
    "parked_messages": ("select lane, seq from headgate.parked_messages", lambda s, c: []),
    "segments": ("select id, state, messages, kept_by from headgate.segments", lambda s, c: []),
    "workers": ("select name, lanes, in_flight from headgate.workers", lambda s, c: []),
    "last_seqs": ("select * from headgate.last_seqs(%s)", lambda s, c: [[STREAM]]),
    "consumer_settings": ("select * from headgate.consumer_settings(%s, %s)", lambda s, c: [STREAM, c]),
    "stream_settings": ("select * from headgate.stream_settings(%s)", lambda s, c: [STREAM]),
    "doctor": ("select * from headgate.doctor()", lambda s, c: []),
}


class Counts(NamedTuple):
    """What the view headgate.consumers says of a consumer."""

    floor: int | None
    unread: int
    exact: bool
    in_flight: int
    parked: int
    dead: int
    lost: int


class FinalState(NamedTuple):
    """How a consumer stands when nobody is there any more, in one snapshot."""

    counts: Counts
    states: dict[int, str]  # of every message that is there

    def __repr__(self) -> str:
        return repr(self.counts)


def counts(rows: list[Any]) -> dict[str, Counts]:
    return {row[0]: Counts(*row[1:]) for row in rows}


class ObserverSession(TortureSession):
    """Asks something after the other; every third time how far the consumers are."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.longest_rest, self.open = 0.05, self.open / 3

    def step(self) -> None:
        if self.random.random() < 0.4:
            self.call("count", COUNTS, [STREAM], counts)
            return
        what = self.random.choice(list(QUESTIONS))
        query, values = QUESTIONS[what]
        asked = values(self, self.random.choice(self.preset.consumers).name)
        self.call("look", query, asked, len, what=what)


def record_final_state(db: psycopg.Connection, history: History, preset: Preset) -> None:
    """The counts and the states of all messages, in one snapshot; after a tick, for what late transactions have left is
    counted as far as ticks tell."""
    history.call("drain", "tick", lambda: db.execute("select headgate.mark(%s)", [STREAM]).fetchall())
    if "recreate_stream" in preset.weights:
        query = "select data from headgate.messages(%s, %s)"
        history.call("drain", "log", lambda: {row[0] for row in db.execute(query, [STREAM, ALL])})
    for consumer in preset.consumers:

        def ask(name: str = consumer.name) -> FinalState:
            with db.transaction():
                db.execute("set transaction isolation level repeatable read")
                found = counts(db.execute(COUNTS, [STREAM]).fetchall())[name]
                states = db.execute("select seq, state from headgate.peek(%s, %s, %s)", [STREAM, name, ALL])
                return FinalState(found, {seq: state for seq, state in states if state != "more"})

        history.call("drain", "final_state", ask, consumer=consumer.name)
