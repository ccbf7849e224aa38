"""What an adversary broke in the engine; each by plain SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest
from calls import Db, ack, call, datas, drain, ids, nack, receive, send_batch, value
from conftest import wait_until
from storage import maintain

S, C = "s", "c"


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.mark.parametrize("commits", [True, False])
def test_a_lane_whose_cursor_is_being_made_is_woken(db: Db, other: Db, commits: bool) -> None:
    """The gatherer meets lanes that it sees discovered, while an open transaction is giving them cursors."""
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C, ack_wait="5 minutes")
    keys = [f"k{i}" for i in range(10)]
    send_batch(db, S, ["first"] * 10, keys=keys)
    ack(db, S, C, receive(db, S, C, 1))
    assert value(db, "select count(*) from headgate.discovered") > 0
    taken = receive(other, S, C, 9)
    ack(other, S, C, taken)
    assert len(taken) == 9
    send_batch(db, S, ["second"] * 10, keys=keys)
    seen = datas(receive(db, S, C, 100))
    if commits:
        other.commit()
    else:
        other.rollback()
    seen += drain(db, S, C)
    assert seen.count("second") == 10
    assert seen.count("first") == (0 if commits else 9)


def test_messages_before_a_large_transaction_come_while_it_is_open(db: Db, other: Db) -> None:
    """Its seqs lie in segments that nobody else sees."""
    call(db, "create_stream", S, lanes=1, segment_rows=1000)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["hello"] * 5)
    for _ in range(7):
        send_batch(other, S, ["x"] * 10_000)
    assert len(receive(db, S, C, 100)) == 5
    assert receive(db, S, C, 100) == []
    other.rollback()
    send_batch(db, S, ["afterwards"])
    wait_until(lambda: drain(db, S, C) == ["afterwards"])  # behind seventy empty segments: a receive is bounded


def test_what_departed_is_stale_also_when_a_vacuum_forgot_who_held_it(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["1", "2", "3"])
    messages = receive(db, S, C, 3)
    nack(db, S, C, messages[2:])
    db.execute("vacuum (freeze) headgate.delivery")
    assert tuple(ack(db, S, C, messages)) == (2, 1)


def test_a_stale_nack_leaves_what_is_behind_it(db: Db, other: Db) -> None:
    """Another is just acking the message: the later one of its key stays where it is."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key")
    send_batch(db, S, ["1", "2"], keys=["k", "k"])
    acks = ids(receive(db, S, C, 2))
    assert tuple(ack(other, S, C, acks[:1])) == (1, 0)
    assert tuple(nack(db, S, C, acks[:1])) == (0, 1)
    other.commit()
    assert receive(db, S, C, 2) == []
    assert tuple(ack(db, S, C, acks[1:])) == (1, 0)


def test_an_ack_beside_one_that_has_extended_and_acked_all_is_stale(db: Db, other: Db) -> None:
    """PostgreSQL waits for the newer version of the row, although it is to skip what is locked."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["1", "2", "3"])
    acks = ids(receive(db, S, C, 3))
    call(other, "extend", S, C, acks, "10 s")
    assert tuple(ack(other, S, C, acks)) == (3, 0)
    assert tuple(ack(db, S, C, acks[:1])) == (0, 1)
    other.rollback()
    assert tuple(ack(db, S, C, acks)) == (3, 0)


def test_a_stale_id_that_is_given_twice_is_one(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["1", "2", "3"])
    acks = ids(receive(db, S, C, 3))
    for given in (acks[:1], acks[1:]):
        assert tuple(ack(db, S, C, given + given)) == (len(given), 0)
        assert tuple(ack(db, S, C, given + given)) == (0, len(given))


def test_versions_that_are_superseded_meanwhile_are_not_lost(db: Db) -> None:
    """remove_segments counts before it waits for everybody, and again what may have changed since."""
    call(db, "create_stream", S, one_message_per_key=True, lanes=1, segment_rows=1000)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["old"] * 1500, keys=[f"k{i}" for i in range(1500)])
    while not value(db, "select count(*) from headgate.segment where state = 'closed'"):
        maintain(db)
    losses = """
        with before as materialized (
          select array_agg(l.consumer) as consumers, array_agg(l.progress) as progress,
                 array_agg(l.messages) as messages
            from headgate.segment g, headgate.losses_in(g) l where g.state = 'closed')
        select l.messages from before b, headgate.segment g, headgate.losses_in(g, b.consumers, b.progress, {}) l
         where g.state = 'closed'"""
    assert value(db, losses.format("b.messages")) == 1000
    assert value(db, losses.format("array[7]::bigint[]")) == 1000  # not what was counted before


def test_nothing_that_users_call_is_compiled(db: Db) -> None:
    """On servers before 18 with JIT a look at the consumers of a stream of a hundred segments took a minute."""
    rows = db.execute(
        "select p.oid::regprocedure from pg_proc p join pg_language l on l.oid = p.prolang"
        " where p.pronamespace = 'headgate'::regnamespace and p.prosecdef and l.lanname = 'plpgsql'"
        " and not 'jit=off' = any(coalesce(p.proconfig, '{}'))"
    ).fetchall()
    assert rows == []


def test_a_part_of_a_large_batch_is_acked_in_time_that_grows_with_it(db: Db) -> None:
    """Half of 10,000 took more than two seconds: each message was compared with each."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    for n in (2, 10_000):
        send_batch(db, S, ["x"] * n)
        acks = ids(receive(db, S, C, n))
        began = time.monotonic()
        assert tuple(ack(db, S, C, acks[: n // 2])) == (n // 2, 0)
        assert time.monotonic() - began < 1
        ack(db, S, C, acks[n // 2 :])
