"""Several sessions settle what came in one batch: they never wait for each other, and nothing is settled twice.

What an open transaction has settled stays its own until its end, past the deadline, too; after a rollback it comes
again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from support.calls import Db, Received, ack, call, extend, facts, nack, receive, send_batch, seqs, tick, value
from support.waiting import wait_until

S, C = "s", "c"
KINDS = [("hash", "none"), ("hash", "key"), ("key", "none"), ("key", "key"), ("channel", "none"), ("channel", "key")]
KIND_IDS = [f"{lane_by}-{order}" for lane_by, order in KINDS]

# Longer than any of these calls takes, and much shorter than the transactions that they must not wait for.
AT_ONCE = 1.0


@pytest.fixture(params=KINDS, ids=KIND_IDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    """A session whose transactions are opened by hand."""
    with psycopg.connect(database_url) as connection:
        yield connection


def batch(db: Db, kind: tuple[str, str] = ("hash", "none"), n: int = 10, **settings: object) -> list[Received]:
    """One delivery of n messages, all of one key (and channel)."""
    lane_by, order = kind
    call(db, "create_stream", S, lanes=1 if lane_by == "hash" else 4, lane_by=lane_by)
    call(db, "create_consumer", S, C, **{"order": order, "ack_wait": "30 seconds"} | settings)
    channels = {"channels": ["x"] * n} if lane_by == "channel" else {}
    send_batch(db, S, [f"m{i}" for i in range(n)], keys=["k"] * n, **channels)
    tick(db, S)
    got = receive(db, S, C, n)
    assert len(got) == n
    assert len({m.delivery for m in got}) == 1
    return got


def expire(db: Db) -> None:
    """The deadline of everything in flight passes, also of what somebody holds: the clock is moved, not the rows."""
    deadline = value(db, "select max(deadline) from headgate.delivery")
    wait_until(lambda: value(db, "select clock_timestamp() > %s + interval '1 millisecond'", deadline))


@pytest.mark.alone
def test_acks_of_different_messages_do_not_wait(db: Db, other: Db, kind: tuple[str, str]) -> None:
    got = batch(db, kind)
    assert ack(other, S, C, got[:5]) == (5, 0)  # and leaves its transaction open
    began = time.monotonic()
    assert ack(db, S, C, got[5:]) == (5, 0)
    assert time.monotonic() - began < AT_ONCE
    assert facts(db, S, C)["in_flight"] == 5
    other.commit()
    assert facts(db, S, C)["in_flight"] == 0
    assert ack(db, S, C, got) == (0, 10)


def test_two_transactions_ack_in_opposite_order(db: Db, database_url: str, kind: tuple[str, str]) -> None:
    got = batch(db, kind)
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as two:
        assert ack(one, S, C, got[:1]) == (1, 0)
        assert ack(two, S, C, got[1:2]) == (1, 0)
        assert ack(one, S, C, got[2:3]) == (1, 0)
        assert ack(two, S, C, got[3:4]) == (1, 0)
        # the same messages, each other's: somebody else is settling them
        assert ack(one, S, C, got[1:2]) == (0, 1)
        assert ack(two, S, C, got[:1]) == (0, 1)
    assert facts(db, S, C)["in_flight"] == 6


@pytest.mark.alone
@pytest.mark.parametrize("settle", ["ack", "nack", "release", "whole"])
def test_the_rest_of_a_batch_is_settled_beside_an_open_ack(db: Db, other: Db, settle: str) -> None:
    got = batch(db)
    ack(other, S, C, got[:3])
    began = time.monotonic()
    if settle == "whole":
        assert ack(db, S, C, [got[0].delivery]) == (7, 3), "three are another's to settle"
    elif settle == "ack":
        assert ack(db, S, C, got) == (7, 3)
    else:
        assert db.execute(
            f"select * from headgate.{settle}(%s, %s, %s)", (S, C, [m.ack_id for m in got])
        ).fetchone() == (
            7,
            3,
        )
    assert time.monotonic() - began < 2 * AT_ONCE
    other.rollback()
    assert facts(db, S, C)["in_flight"] == 3
    assert ack(db, S, C, got[:3]) == (3, 0)


@pytest.mark.parametrize("whole", [False, True], ids=["partial", "whole"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_open_ack_keeps_its_messages_past_the_deadline(
    db: Db, other: Db, kind: tuple[str, str], whole: bool, ends: str
) -> None:
    """Exactly-once effects: whoever acks inside its transaction has the message to itself until that ends."""
    got = batch(db, kind, 4, ack_wait="200 milliseconds")
    mine = got if whole else got[:2]
    assert ack(other, S, C, [got[0].delivery] if whole else mine) == (len(mine), 0)
    expire(db)
    for _ in range(3):
        call(db, "maintain")
        assert set(seqs(receive(db, S, C))) & set(seqs(mine)) == set()
    getattr(other, ends)()
    again: set[int] = set()
    expected = set() if ends == "commit" and whole else set(seqs(got[2:] if ends == "commit" else got))

    def come() -> bool:
        messages = receive(db, S, C)
        again.update(seqs(messages))
        ack(db, S, C, messages)
        return again >= expected

    wait_until(come)
    if ends == "commit":
        for _ in range(3):
            come()
        assert again == expected


def test_what_departed_is_not_in_flight_anywhere(db: Db) -> None:
    got = batch(db, n=5, max_ack_pending=5)
    assert receive(db, S, C) == []
    ack(db, S, C, got[:2])
    nack(db, S, C, got[2:3], delay="1 hour")
    assert facts(db, S, C)["in_flight"] == 2
    assert facts(db, S, C)["floor"] == 2
    assert db.execute("select seqs from headgate.deliveries").fetchall() == [([4, 5],)]
    states = db.execute("select seq, state from headgate.peek(%s, %s)", (S, C)).fetchall()
    assert states == [(1, "done"), (2, "done"), (3, "parked"), (4, "delivered"), (5, "delivered")]
    send_batch(db, S, ["a", "b", "c", "d"])
    assert len(receive(db, S, C)) == 3, "max_ack_pending counts what is left"
    assert extend(db, S, C, got, "1 minute") == (2, 3)


def test_the_last_ack_leaves_nothing_behind(db: Db, kind: tuple[str, str]) -> None:
    got = batch(db, kind)
    for message in got:
        assert ack(db, S, C, [message]) == (1, 0)
    assert value(db, "select count(*) from headgate.delivery") == 0
    assert value(db, "select count(*) from headgate.departed") == 0


def test_maintenance_clears_up_after_acks_that_missed_each_other(db: Db, other: Db) -> None:
    got = batch(db)
    ack(other, S, C, got[:5])
    ack(db, S, C, got[5:])
    other.commit()
    assert value(db, "select count(*) from headgate.departed") == 10
    receive(db, S, C, acks=[got[0].delivery])
    call(db, "maintain")
    assert value(db, "select count(*) from headgate.departed") == 0


@pytest.mark.parametrize("lane_by", ["key", "channel", "hash"])
def test_a_lane_of_one_key_goes_on_after_acks_that_missed_each_other(db: Db, other: Db, lane_by: str) -> None:
    """Nobody deleted the delivery, though all of it is acked: the key must not wait for its deadline."""
    got = batch(db, (lane_by, "key"))
    channels = {"channels": ["x"]} if lane_by == "channel" else {}
    send_batch(db, S, ["next"], keys=["k"], **channels)
    assert receive(db, S, C) == []
    ack(other, S, C, got[:5])
    ack(db, S, C, got[5:])
    other.commit()
    found: list[Received] = []

    def come() -> bool:
        found.extend(receive(db, S, C))
        return bool(found)

    wait_until(come, 10)
    assert [m.data for m in found] == ["next"]


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k != ("channel", "key")], ids=lambda k: "-".join(k), indirect=True
)
def test_an_ack_with_receive_counts_while_its_delivery_is_extended(
    db: Db, database_url: str, kind: tuple[str, str]
) -> None:
    """E1: the delivery's row moves with each extension, and the ack must find it where it is then."""
    lane_by, order = kind
    call(db, "create_stream", S, lane_by=lane_by)
    call(db, "create_consumer", S, C, order=order, ack_wait="10 seconds")
    n = 200
    keys = [f"k{i}" for i in range(n)]
    channels = {"channels": keys} if lane_by == "channel" else {}
    send_batch(db, S, keys, keys=keys, **channels)
    tick(db, S)
    held: list[str] = []
    stop = threading.Event()

    def extend_all() -> None:
        with psycopg.connect(database_url, autocommit=True) as extender:
            while not stop.is_set():
                extend(extender, S, C, list(held), "10 seconds")

    seen: list[int] = []
    thread = threading.Thread(target=extend_all)
    thread.start()
    try:
        with psycopg.connect(database_url, autocommit=True) as worker:
            for _ in range(400):
                rows = receive(worker, S, C, 5, acks=list(dict.fromkeys(held)))
                held[:] = [m.delivery for m in rows]
                seen += seqs(rows)
                if not rows and len(seen) >= n:
                    break
    finally:
        stop.set()
        thread.join()
    ack(db, S, C, held)
    assert len(seen) == len(set(seen)) == n
    assert facts(db, S, C)["in_flight"] == 0


def test_many_sessions_settle_one_batch_in_transactions(db: Db, database_url: str) -> None:
    """Acks, nacks, releases and extensions in any order, each transaction of several; every message is settled once."""
    got = batch(db, n=60, backoff={"first": 3600})
    done: list[tuple[str, int]] = []
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            with psycopg.connect(database_url) as session:
                for _ in range(12):
                    mine: list[tuple[str, int]] = []
                    for message in dice.sample(got, 4):
                        verb = dice.choice(["ack", "nack", "extend"])
                        if verb == "extend":
                            extend(session, S, C, [message], "1 minute")
                            continue
                        settled = {"ack": ack, "nack": nack}[verb](session, S, C, [message])
                        mine += [(verb, message.seq)] * settled[0]
                    if dice.random() < 0.3:
                        session.rollback()
                    else:
                        session.commit()
                        with lock:
                            done.extend(mine)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    settled = sorted(seq for _, seq in done)
    assert settled == sorted(set(settled)), "once each"
    assert facts(db, S, C)["in_flight"] == len(got) - len(settled)
    assert facts(db, S, C)["parked"] == sum(verb == "nack" for verb, _ in done)


@pytest.mark.parametrize("lane_by", ["hash", "key"])
def test_an_ack_with_receive_is_not_dropped_beside_an_open_seek(db: Db, other: Db, lane_by: str) -> None:
    """The answer of a receive says nothing of its acks: so it fails rather than let one go."""
    got = batch(db, (lane_by, "none"))
    call(other, "seek", S, C, "end")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        receive(db, S, C, acks=[got[0].delivery])
    other.rollback()
    receive(db, S, C, acks=[got[0].delivery])
    assert facts(db, S, C)["in_flight"] == 0


HAS_WAITED = """
select wait_event_type = 'Lock' and clock_timestamp() > query_start + interval '0.3 seconds'
  from pg_stat_activity where pid = %s
"""
SETTLING = {
    "ack": (lambda db, got: ack(db, S, C, got[:1]), ("departed", "parked")),
    "nack": (lambda db, got: nack(db, S, C, got[:1]), ("delivery", "departed", "parked", "wake")),
    "release": (lambda db, got: call_counts(db, "release", got[:1]), ("delivery", "departed", "parked")),
    "extend": (lambda db, got: extend(db, S, C, got[:1], "1 minute"), ("delivery", "departed")),
}


def call_counts(db: Db, function: str, got: list[Received]) -> tuple[int, int]:
    query = f"select * from headgate.{function}(%s, %s, %s)"
    row = db.execute(query, [S, C, [m.ack_id for m in got]]).fetchone()  # type: ignore[arg-type]
    assert row
    return row[0], row[1]


@pytest.mark.parametrize(("how", "table"), [(how, table) for how, (_, tables) in SETTLING.items() for table in tables])
def test_a_rewrite_of_a_small_table_is_waited_for(db: Db, other: Db, how: str, table: str) -> None:
    """It may take longer than anybody waits for a row: PostgreSQL's own error came of it."""
    got = batch(db)
    settle, _ = SETTLING[how]
    other.execute(f"lock table headgate.{table} in access exclusive mode")  # type: ignore[arg-type]
    with psycopg.connect(other.info.dsn, autocommit=True) as watcher, ThreadPoolExecutor(1) as threads:
        done = threads.submit(settle, db, got)
        wait_until(lambda: done.done() or value(watcher, HAS_WAITED, db.info.backend_pid))
        other.commit()
        assert tuple(done.result()) == (1, 0)
