"""Nobody but the engine writes dead letters; and what was written by hand before breaks nothing (S9 of the review)."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import errors

import headgate
from support.calls import Db, call, column, facts, forge_dead, nack, receive, send, send_batch, value
from support.command_line import CommandLine

S, C = "s", "c"
GARBAGE: list[dict[str, Any]] = [
    {"failed_at": "garbage"},
    {"failed_at": "infinity"},
    {"failed_at": {"a": 1}, "attempts": "many"},
    {"failed_at": "2026-13-41", "attempts": 10**30, "source_seq": "garbage"},
    {"source_seq": -1, "sent_at": []},
    {"source_seq": 10**40},
    {"source_seq": 10**17},  # a seq that was never drawn
    {"source_seq": 1.5, "source_lane": "x"},
    {"source_seq": None, "last_error": {"a": []}},
]


@pytest.fixture
def letter(db: Db) -> int:
    """A true dead letter; returns the seq of its message."""
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C, max_deliver=1)
    (seq,) = send(db, S, "true", key="k")
    nack(db, S, C, receive(db, S, C), error="bad")
    return seq


def test_refused_in_sql(db: Db, letter: int) -> None:
    for attempt in (
        lambda: send(db, "s.dead", "x"),
        lambda: send_batch(db, "s.dead", ["x"], headers=['{"failed_at": "garbage"}']),
        lambda: send_batch(db, "s.dead", []),
        lambda: value(db, "select headgate.stage('s.dead', 'w', 1)"),
        lambda: call(db, "create_source", "hook", "s.dead", scheme="none"),
    ):
        with pytest.raises(errors.Error, match="dead letters") as refused:
            attempt()
        assert (refused.value.sqlstate, bool(refused.value.diag.message_hint)) == ("HG010", True)
    assert facts(db, S, C)["dead"] == 1


def test_refused_in_python_and_on_the_command_line(hg: headgate.Headgate, run: CommandLine) -> None:
    stream = hg.stream(S, create=True)
    stream.consumer(C, max_deliver=1, create=True)
    with pytest.raises(headgate.errors.InvalidArgument, match="dead letters"):
        hg.stream("s.dead").send("x", headers={"failed_at": "garbage"})
    assert "dead letters" in run("send", "s.dead", "x").err


@pytest.mark.parametrize("garbage", GARBAGE, ids=str)
def test_what_was_written_before(db: Db, hg: headgate.Headgate, letter: int, garbage: dict[str, Any]) -> None:
    forge_dead(db, "s.dead", "forged", headers={"source_consumer": C, **garbage})
    consumer = hg.stream(S).consumer(C)
    assert sorted(d.data for d in consumer.dead_letters()) == ["forged", "true"]
    assert consumer.info().dead == 2
    assert value(db, "select count(*) from headgate.message_life(%s, %s) where event = 'dead'", S, letter) == 1
    assert [e.event for e in hg.stream(S).message_life(letter)][-1] == "dead"
    assert hg.doctor() is not None
    column(db, "select state from headgate.peek('s', 'c', states => array['dead'])")
    redriven = consumer.redrive(all=True)
    left = consumer.dead_letters()
    assert (redriven, [d.data for d in left]) == (1, ["forged"]), "it names no message that could be given back"
    assert consumer.purge_dead(all=True) == len(left)
    assert consumer.dead_letters() == []
    assert "true" in [m.data for m in consumer.receive(10)]
