"""What DESIGN.md warns of: unusual transactions, poolers, many workers on few lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest
from psycopg import Connection, IsolationLevel

from support.engine import Received, ack, create, datas, drain, receive, scalar, send, send_many, take, tick

Connect = Callable[[], Connection]


@pytest.fixture
def connect(database_url: str) -> Iterator[Connect]:
    """Opens further sessions, not in autocommit."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(database_url))


def in_a_transaction(session: Connection) -> Connection:
    """Open a transaction and let a moment pass, as between a user's BEGIN and what follows."""
    session.execute("select 1")
    time.sleep(0.005)
    return session


FIXED = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]


@pytest.mark.parametrize("level", FIXED)
def test_receive_with_a_fixed_snapshot(db: Connection, connect: Connect, level: IsolationLevel) -> None:
    """It makes a tick of its own, on which nobody else builds: its snapshot is older than the newest one."""
    create(db, "c", "other")
    send(db, "before")
    tick(db)
    session = connect()
    session.isolation_level = level
    in_a_transaction(session)
    send(db, "after")
    assert sorted(datas(drain(db, "other"))) == ["after", "before"]
    ticks = scalar(db, "select max(id) from headgate.tick where base = id")
    assert datas(receive(session)) == ["before"]
    assert scalar(session, "select headgate.tick('s')") != ticks, "newer ones are not in its snapshot"
    session.commit()
    assert scalar(db, "select max(id) from headgate.tick where base = id") == ticks
    assert datas(drain(db)) == ["after"]


@pytest.mark.parametrize("level", FIXED)
def test_workers_with_fixed_snapshots_receive_everything_once(
    db: Connection, connect: Connect, level: IsolationLevel
) -> None:
    create(db, "c")
    sessions = [connect() for _ in range(2)]
    for session in sessions:
        session.isolation_level = level
    found: list[str] = []
    for number in range(60):
        send(db, f"{number}")
        tick(db)
        session = sessions[number % 2]
        try:
            messages = receive(session)
            ack(session, messages)
            session.commit()
            found += datas(messages)
        except psycopg.errors.SerializationFailure:
            session.rollback()
        if number % 7 == 0:
            found += datas(drain(db))
    assert sorted(found + datas(drain(db)), key=int) == [f"{number}" for number in range(60)]


def test_receive_in_a_longer_transaction_holds_nobody_up(db: Connection, connect: Connect) -> None:
    create(db, "c", "other", lanes=8)
    send(db, "first")
    tick(db)
    session = in_a_transaction(connect())
    assert datas(receive(session)) == ["first"]
    db.execute("set lock_timeout = '1ms'")
    public = scalar(db, "select max(id) from headgate.tick where base = id")
    lanes: set[int] = set()
    for number in range(200):
        send(db, f"{number}")
    mine = take(db)
    lanes = {int(m.ack_id.split(".")[0]) for m in mine}
    assert len(lanes) >= 7, "all lanes but the one that the transaction took from go on"
    assert len(drain(db, "other")) == 201
    assert scalar(db, "select max(id) from headgate.tick where base = id") != public, "ticks go on being made"
    session.commit()
    assert len(mine) + len(take(db)) == 200, "what was received in the transaction stays received"


def test_receive_in_a_longer_transaction_that_rolls_back(db: Connection, connect: Connect) -> None:
    create(db, "c", "other")
    send_many(db, [f"{number}" for number in range(50)])
    session = in_a_transaction(connect())
    assert len(take(session)) == 50
    send(db, "new")
    assert len(drain(db, "other")) == 51
    session.rollback()
    assert len(drain(db)) == 51


def test_receive_in_a_longer_transaction_when_nobody_else_ticks(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = in_a_transaction(connect())
    for data in ("a", "b", "c"):
        send(db, data)
        assert datas(take(session)) == [data]
    session.commit()
    assert take(db) == []


def test_transactions_in_turn_and_at_once(db: Connection, connect: Connect) -> None:
    """Cursors stand on private ticks of some and on public ticks of others."""
    create(db, "c", lanes=2)
    sessions = [connect() for _ in range(3)]
    found: list[str] = []
    pending: dict[Connection, list[str]] = {session: [] for session in sessions}
    for number in range(90):
        send(db, f"{number}")
        session = in_a_transaction(sessions[number % 3])
        pending[session] += datas(receive(session, n=3))
        if number % 5 == 4:
            session.rollback()
            pending[session] = []
        elif number % 2:
            session.commit()
            found += pending[session]
            pending[session] = []
        if number % 11 == 0:
            found += datas(receive(db, n=2))
    for session in sessions:
        session.commit()
        found += pending[session]
    assert sorted(found + datas(drain(db)), key=int) == [f"{number}" for number in range(90)]


def test_send_and_receive_in_one_transaction(db: Connection, connect: Connect) -> None:
    """What a transaction sends comes after its commit, and nothing of it is lost, whatever else has committed."""
    create(db, "c", "other")
    session = in_a_transaction(connect())
    send(session, "sent before")
    send(db, "by somebody else")
    assert datas(take(session)) == ["by somebody else"]
    send(db, "by somebody else")
    send(session, "sent after")
    assert datas(take(session)) == ["by somebody else"]
    send(session, "sent last")
    session.commit()
    assert sorted(datas(drain(db))) == ["sent after", "sent before", "sent last"]
    assert len(drain(db, "other")) == 5


def test_a_transaction_that_receives_first_and_sends_then(db: Connection, connect: Connect) -> None:
    create(db, "c")
    send(db, "a")
    session = in_a_transaction(connect())
    session.execute("select pg_current_xact_id()")
    send(db, "b")
    assert sorted(datas(take(session))) == ["a", "b"]
    send(session, "c")
    session.commit()
    send(db, "d")
    assert sorted(datas(drain(db))) == ["c", "d"]


def test_receive_and_send_in_one_statement(db: Connection, connect: Connect) -> None:
    """A statement that puts messages back, while others commit: the tick is made by the transaction that sends."""
    create(db, "c")
    send_many(db, [f"{number}" for number in range(20)])
    stop = threading.Event()

    def burn(session: Connection) -> None:
        while not stop.is_set():
            session.execute("select pg_current_xact_id()")
            session.commit()

    burners = [threading.Thread(target=burn, args=[connect()]) for _ in range(2)]
    for burner in burners:
        burner.start()
    try:
        for _ in range(100):
            db.execute(
                "with r as materialized (select * from headgate.receive('s', 'c', 5)), "
                "a as (select headgate.ack('s', 'c', array_agg(ack_id)) from r having count(*) > 0) "
                "select headgate.send('s', r.data) from r, a"
            )
            time.sleep(0.002)
    finally:
        stop.set()
        for burner in burners:
            burner.join(10)
    assert sorted(datas(drain(db)), key=int) == [f"{number}" for number in range(20)]


def test_a_users_transaction_commits_as_the_user_said(db: Connection, connect: Connect) -> None:
    """Relaxed commits must not leak into a transaction of the user's."""
    create(db, "c")
    send_many(db, ["a", "b"])
    session = connect()
    in_a_transaction(session)
    messages = take(session)
    ack(session, messages[:1])
    session.execute("select headgate.nack('s', 'c', %s)", [[messages[1].ack_id]])
    assert scalar(session, "show synchronous_commit") == "on"
    session.commit()
    receive(session)
    assert scalar(session, "show synchronous_commit") == "on"


@pytest.mark.parametrize("lanes", [1, 2])
def test_few_lanes_many_workers(db: Connection, connect: Connect, lanes: int) -> None:
    """While there is work, no worker is told that there is none."""
    create(db, "c", lanes=lanes)
    total = 4000
    send_many(db, [f"{number}" for number in range(total)])
    tick(db)
    found: list[list[Received]] = []
    left = threading.Semaphore(total // 10 - 8)  # the last ones may find nothing

    def work(session: Connection) -> None:
        session.autocommit = True
        acks: list[str] = []
        while left.acquire(blocking=False):
            messages = receive(session, n=10, acks=acks)
            acks = [m.ack_id for m in messages]
            found.append(messages)

    workers = [threading.Thread(target=work, args=[connect()]) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    empty = sum(not messages for messages in found)
    assert empty <= len(found) // 100, f"{empty} of {len(found)} receives found nothing"
    seqs = [m.seq for messages in found for m in messages]
    assert len(seqs) == len(set(seqs))


def test_gaps_are_not_counted(db: Connection, connect: Connect) -> None:
    create(db, "c")
    session = connect()
    for _ in range(3):
        send_many(session, ["no"] * 500)
        session.rollback()
        send(db, "yes")
    assert scalar(db, "select unread from headgate.consumers") == 3
    assert scalar(db, "select messages from headgate.streams") == 3
    assert datas(drain(db)) == ["yes"] * 3
    assert scalar(db, "select lag from headgate.consumers") == 0


def test_no_session_state(db: Connection, database_url: str) -> None:
    """As behind a pooler that gives each statement another session, or throws away what a session remembers."""
    create(db, "c", order="key", ack_wait=timedelta(milliseconds=300))
    found: dict[str, int] = {}
    with (
        psycopg.connect(database_url, autocommit=True, prepare_threshold=None) as a,
        psycopg.connect(database_url, autocommit=True, prepare_threshold=None) as b,
    ):
        for number in range(30):
            send(a, f"{number}", f"k{number % 3}")
            a.execute("discard all")
        deadline = time.monotonic() + 20
        turn = 0
        while len(found) < 30:
            assert time.monotonic() < deadline
            turn += 1
            messages = receive(b, n=4)
            b.execute("discard all")
            if messages and turn % 3 == 0:
                a.execute("select headgate.nack('s', 'c', %s, '0')", [[m.ack_id for m in messages]])
            elif messages and turn % 7:
                a.execute("select headgate.extend('s', 'c', %s, '1 second')", [[m.ack_id for m in messages]])
                a.execute("discard all")
                acked, _ = ack(b, messages)
                assert acked == len(messages)
                for m in messages:
                    assert m.data not in found
                    found[m.data] = m.seq
            a.execute("discard all")
    for key in range(3):
        acked_in_order = [int(data) for data in found if int(data) % 3 == key]
        assert acked_in_order == sorted(acked_in_order)


def test_max_ack_pending_in_a_longer_transaction_holds_nobody_up(db: Connection, connect: Connect) -> None:
    create(db)
    db.execute("select headgate.create_consumer('s', 'c', max_ack_pending => 100)")
    send_many(db, [f"{number}" for number in range(50)])
    session = in_a_transaction(connect())
    assert len(receive(session, n=5)) == 5
    db.execute("set lock_timeout = '50ms'")
    assert receive(db, n=5)


def test_a_clock_that_went_back_does_not_stop_ticks(db: Connection) -> None:
    create(db, "c")
    send(db, "first")
    assert datas(drain(db)) == ["first"]
    db.execute("update headgate.tick set at = at + interval '1 hour'")
    send(db, "second")
    assert datas(drain(db)) == ["second"]


def test_a_late_commit_does_not_wait_behind_a_backlog(db: Connection, connect: Connect) -> None:
    """While lanes have work left, and no further seq is drawn, what commits out of order is still found soon."""
    create(db, "c")
    slow = connect()
    send(slow, "slow", key="slow")
    send_many(db, ["x"] * 10_000, [f"k{i}" for i in range(10_000)])
    receive(db, n=1)
    slow.commit()
    time.sleep(0.03)  # a tick is made again after 20 ms
    seen = 0
    for _ in range(400):
        got = receive(db, n=20)
        seen += len(got)
        if "slow" in datas(got):
            break
    assert seen < 8_000
