"""Lanes that a receive met and left to others: nothing of them is lost, doubled, removed or forgotten.

Each of these was found by attacking the engine; the receives are plain SQL, which does not say that it is alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from support.calls import Db, ack, call, datas, drain, nack, receive, send, send_batch, tick, value
from support.storage import create, end_segment, maintain
from support.waiting import wait_until

S, C = "s", "c"


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("meanwhile", ["nothing", "maintain", "alone"])
def test_met_again_before_they_are_taken(db: Db, n: int, meanwhile: str) -> None:
    """A cursor made from the second meeting would begin behind the first one."""
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C)
    keys = [f"k{i}" for i in range(30)]
    send_batch(db, S, [f"{k}.1" for k in keys], keys=keys)
    first = receive(db, S, C, n)
    ack(db, S, C, first)
    assert value(db, "select count(*) from headgate.discovered") > 0
    send_batch(db, S, [f"{k}.2" for k in keys], keys=keys)
    tick(db, S)
    seen = datas(first)
    if meanwhile == "maintain":
        db.execute("update headgate.cursor set served_at = served_at - interval '1 minute'")
        maintain(db)
    elif meanwhile == "alone":
        rows = db.execute("select ack_id, data from headgate.receive_1(%s, 10, null, null, false)", (C,)).fetchall()
        ack(db, S, C, [row[0] for row in rows])
        seen += [row[1] for row in rows]
    while got := receive(db, S, C, n):
        seen += datas(got)
        ack(db, S, C, got)
    assert sorted(seen) == sorted(f"{k}.{i}" for k in keys for i in (1, 2))


def test_a_note_does_not_make_a_discovered_lane_look_read(db: Db) -> None:
    """A redriven message of a lane that was forgotten, and a fresh one that only `discovered` tells of."""
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C, max_deliver=1)
    send(db, S, "dead", channel="x")
    nack(db, S, C, receive(db, S, C))
    assert receive(db, S, C) == []
    db.execute(
        "update headgate.cursor set served_at = served_at - interval '1 hour', "
        "rate_since = rate_since - interval '1 hour'"
    )
    wait_until(
        lambda: maintain(db) is not None and not value(db, "select count(*) from headgate.cursor where lane > 0")
    )
    send_batch(db, S, ["a", "b", "c", "fresh"], channels=["a", "b", "c", "x"])
    tick(db, S)
    seen = datas(receive(db, S, C, 1))
    call(db, "redrive", S, C, all=True)
    while got := receive(db, S, C, 1):
        seen += datas(got)
    assert sorted(seen) == ["a", "b", "c", "dead", "fresh"]


def test_retention_leaves_what_only_a_discovery_tells_of(db: Db, other: Db, database_url: str) -> None:
    create(db, lane_by="key", retain="until_acked")
    call(db, "create_consumer", S, C)
    send(db, S, "m1", key="x")
    tick(db, S)
    value(other, "select pg_current_xact_id()")
    mine = receive(other, S, C)
    assert datas(mine) == ["m1"]
    send(db, S, "m2", key="x")
    with psycopg.connect(database_url) as mover:  # meets x, whose cursor is not committed yet
        receive(mover, S, C)
        mover.commit()
    other.commit()
    ack(db, S, C, mine)
    end_segment(db)
    for _ in range(3):
        maintain(db)
    assert drain(db, S, C) == ["m2"]


def test_a_lane_that_read_up_to_a_private_tick_is_not_forgotten(db: Db, other: Db) -> None:
    """It has read more than its base tells: a new cursor would read that again."""
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C)
    send(db, S, "m0", key="k0")
    ack(db, S, C, receive(db, S, C))
    call(db, "send", S, "tick", key="k2")
    call(other, "tick", S)  # public, and open
    send(db, S, "m1", key="k1")
    got: list[str] = []

    def come() -> bool:
        rows = db.execute("select ack_id, data from headgate.receive(%s, %s, 10)", (S, C)).fetchall()
        ack(db, S, C, [row[0] for row in rows])
        got.extend(row[1] for row in rows)
        return "m1" in got

    wait_until(come)
    db.execute(
        "update headgate.cursor set served_at = served_at - interval '1 hour', "
        "rate_since = rate_since - interval '1 hour'"
    )
    maintain(db)
    other.commit()
    assert sorted(got + drain(db, S, C)) == ["m1", "tick"]


def test_limits_reach_a_cursor_that_is_being_made(db: Db, other: Db) -> None:
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send_batch(db, S, [f"m{i}" for i in range(6)], channels=["x"] * 6)
    tick(db, S)
    assert len(receive(other, S, C, 1)) == 1
    call(db, "set_channel", S, C, "x", max_concurrency=1)
    other.commit()
    assert receive(db, S, C, 10) == []


@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
@pytest.mark.parametrize("order", ["none", "key"])
def test_a_parked_message_comes_with_a_fixed_snapshot(db: Db, lane_by: str, order: str) -> None:
    call(db, "create_stream", S, lane_by=lane_by)
    call(db, "create_consumer", S, C, order=order)
    send(db, S, "m", key="k", **({"channel": "x"} if lane_by == "channel" else {}))
    nack(db, S, C, receive(db, S, C), delay="0 seconds")
    db.execute("set default_transaction_isolation = 'repeatable read'")
    found: list[str] = []
    wait_until(lambda: found.extend(datas(receive(db, S, C))) or found)  # type: ignore[func-returns-value]
    assert found == ["m"]


def test_many_acks_that_an_open_transaction_holds_are_waited_for_once(db: Db, other: Db) -> None:
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["m"] * 60, keys=[f"k{i}" for i in range(60)])
    tick(db, S)
    got = receive(db, S, C, 100)
    while len(got) < 60:
        got += receive(db, S, C, 100)
    assert ack(other, S, C, got) == (60, 0)
    before = value(db, "select clock_timestamp()")
    assert ack(db, S, C, got) == (0, 60)
    assert value(db, "select clock_timestamp() - %s < interval '1 second'", before)
