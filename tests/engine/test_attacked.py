"""What an adversary broke in the engine; each by plain SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from support.calls import Db, ack, call, datas, discard_all, drain, ids, nack, receive, send_batch, value
from support.storage import maintain
from support.waiting import wait_until

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


@pytest.mark.alone
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


@pytest.mark.parametrize("stream", [{"lanes": 1}, {"lane_by": "channel"}], ids=["hash", "channel"])
def test_what_waits_behind_a_late_ack_goes_on(db: Db, other: Db, stream: dict[str, object]) -> None:
    """A claim that does not see the ack yet parks what comes behind the message."""
    call(db, "create_stream", S, **stream)
    call(db, "create_consumer", S, C, order="key")
    call(db, "send", S, "a1", key="a")
    late = receive(db, S, C)
    call(db, "extend", S, C, ids(late), "0")
    assert ack(other, S, C, late) == (1, 0)
    call(db, "send", S, "a2", key="a")
    assert receive(db, S, C) == []
    other.commit()
    call(db, "send", S, "a3", key="a")
    found: list[str] = []

    def come() -> bool:
        found.extend(drain(db, S, C))
        return found == ["a2", "a3"]

    wait_until(come, 5)


@pytest.mark.alone
def test_a_late_ack_in_an_open_transaction_stops_no_change_of_lanes(db: Db, other: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key")
    call(db, "send", S, "a1", key="a")
    late = receive(db, S, C)
    call(db, "extend", S, C, ids(late), "0")
    assert ack(other, S, C, late) == (1, 0)
    call(db, "set_lanes", S, 2)
    call(db, "send", S, "b1", key="b")
    began = time.monotonic()
    maintain(db)
    receive(db, S, C)
    assert time.monotonic() - began < 2
    other.commit()
    wait_until(lambda: value(db, "select unread from headgate.consumers") == 0 or drain(db, S, C) == ["b1"], 5)


def test_max_ack_pending_beside_an_open_transaction(db: Db, other: Db, database_url: str) -> None:
    """Those who pass it by still come one at a time."""
    call(db, "create_stream", S, lanes=16)
    call(db, "create_consumer", S, C, max_ack_pending=10)
    send_batch(db, S, ["x"] * 500)
    receive(db, S, C, 1)
    ack(db, S, C, receive(other, S, C, 1))
    value(other, "select pg_sleep(0.4)")
    with ThreadPoolExecutor(16) as pool:

        def one(_: int) -> int:
            with psycopg.connect(database_url, autocommit=True) as session:
                return len(receive(session, S, C, 10))

        got = sum(pool.map(one, range(16)))
    assert got == 9
    other.rollback()


def test_a_long_list_of_seqs_is_discarded_to_its_end(db: Db) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C)
    for _ in range(3):
        send_batch(db, S, ["x"] * 10_000)
    for _ in range(3):
        ack(db, S, C, [m for m in receive(db, S, C, 10_000) if m.seq % 2])
    assert discard_all(db, S, C, seqs=list(range(1, 30_001))) == 15_000
    assert value(db, "select lag from headgate.consumers") == 0


@pytest.mark.parametrize(
    "call_",
    [
        "headgate.receive('s', 'c', 1, ack_wait => '300000 years')",
        "headgate.receive('s', 'c', 1, ack_wait => '-1 second')",
        "headgate.discard('s', 'c', older_than => '300000 years')",
        "headgate.discard('s', 'c', older_than => '1 second', go_on => '0/5/-/1:1:')",
    ],
)
def test_absurd_times_get_an_error_with_a_hint(db: Db, call_: str) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C)
    with pytest.raises(psycopg.Error) as raised:
        db.execute(f"select * from {call_}")
    assert (raised.value.sqlstate, bool(raised.value.diag.message_hint)) == ("HG010", True)


@pytest.mark.parametrize("time", ["294276-12-31 23:59:59+00", "4713-01-01 00:00:00+00 BC"])
def test_a_replay_up_to_the_end_of_time(db: Db, time: str) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C)
    drain(db, S, C)
    db.execute("select * from headgate.replay('s', 'c', to_time => %s)", [time])
