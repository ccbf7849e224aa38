"""What a user's open transaction may hold, and that nobody else is stopped by it.

It cannot be told whether the first statement after BEGIN is alone, so a receive there must not stop others either: what
it holds until its commit, they have a way around.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from support.calls import (
    Db,
    Received,
    ack,
    call,
    discard,
    extend,
    facts,
    nack,
    pass_time,
    receive,
    send,
    send_batch,
    seqs,
    tick,
    value,
)
from support.waiting import wait_until

S, C = "s", "c"

# Nobody is stopped for longer than this by a transaction that is open for good.
PATIENCE = 2.0


@contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < PATIENCE


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    """A session whose transactions are opened by psycopg: BEGIN and the first statement arrive together."""
    with psycopg.connect(database_url) as connection:
        yield connection


@pytest.fixture
def third(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url) as connection:
        yield connection


def first_receive(db: Db, n: int = 1) -> list[Received]:
    """A receive that is the first statement of its transaction."""
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    got = receive_now(db, n)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    return got


def receive_now(db: Db, n: int = 10) -> list[Received]:
    rows = db.execute("select * from headgate.receive(%s, %s, %s)", (S, C, n)).fetchall()
    return [Received(*row) for row in rows]


def gather(db: Db, expected: set[str], n: int = 10) -> None:
    """Others get all of these, soon."""
    found: set[str] = set()

    def come() -> bool:
        found.update(m.data for m in receive_now(db, n))
        return found >= expected

    wait_until(come, 5)
    assert found == expected


@pytest.mark.parametrize("lane_by", ["key", "channel"])
def test_a_first_receive_does_not_hold_up_new_lanes(db: Db, other: Db, lane_by: str) -> None:
    """E4: it holds the gatherer."""
    call(db, "create_stream", S, lane_by=lane_by)
    call(db, "create_consumer", S, C)
    names = [f"n{i}" for i in range(20)]
    where = {"keys": names} | ({"channels": names} if lane_by == "channel" else {})
    send_batch(db, S, names, **where)
    mine = first_receive(other, 3)
    assert len(mine) == 3
    gather(db, set(names) - {m.data for m in mine})
    later = [f"later{i}" for i in range(5)]
    send_batch(db, S, later, **dict.fromkeys(where, later))
    gather(db, set(later))


@pytest.mark.alone
def test_a_first_receive_does_not_hold_up_a_limited_consumer(db: Db, other: Db) -> None:
    """E4: it holds the lock under which messages in flight are counted."""
    call(db, "create_stream", S, lanes=8)
    call(db, "create_consumer", S, C, max_ack_pending=100)
    send_batch(db, S, [f"m{i}" for i in range(40)], keys=[f"k{i}" for i in range(40)])
    tick(db, S)
    mine = {m.data for m in first_receive(other, 3)}
    with at_once():
        assert receive_now(db)
    other.rollback()
    assert mine


def test_max_ack_pending_holds_for_receives_of_their_own(db: Db, database_url: str) -> None:
    call(db, "create_stream", S, lanes=8)
    call(db, "create_consumer", S, C, max_ack_pending=7)
    send_batch(db, S, [f"m{i}" for i in range(400)])
    tick(db, S)
    most: list[int] = []
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(database_url, autocommit=True) as session:
            while not stop.is_set():
                got = receive_now(session, 5)
                most.append(value(session, "select coalesce(sum(cardinality(seqs)), 0) from headgate.delivery"))
                ack(session, S, C, got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(most) > 150)
    stop.set()
    for thread in threads:
        thread.join()
    assert max(most) <= 7


def test_max_ack_pending_holds_for_a_receive_that_a_busy_machine_starts_late(db: Db, other: Db) -> None:
    """It looks like part of an open transaction, and is counted all the same by those who come at that moment."""
    call(db, "create_stream", S, lanes=8)
    call(db, "create_consumer", S, C, max_ack_pending=7)
    send_batch(db, S, [f"m{i}" for i in range(400)])
    tick(db, S)
    for _ in range(20):  # a round counts when the machine did not stop in it
        began = time.monotonic()
        value(other, "select pg_sleep(0.005)")
        late = receive_now(other, 5)
        with ThreadPoolExecutor() as pool:
            meanwhile = pool.submit(receive_now, db, 5)
            while not meanwhile.done() and time.monotonic() - began < 0.1:
                time.sleep(0.005)
            waited = not meanwhile.done()
            other.commit()
            took = time.monotonic() - began
            got = meanwhile.result()
        if took < 0.25:
            assert waited
            assert (len(late), len(got)) == (5, 2)
            return
        ack(db, S, C, late + got)
    pytest.fail("the machine is too busy to tell")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_receiving_only_in_open_transactions_gets_past_100000_messages(db: Db, other: Db, isolation: str) -> None:
    """E5: the gatherer is moved by maintenance, and looked past meanwhile."""
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    for _ in range(11):
        send_batch(db, S, ["x"] * 10_000, channels=["large"] * 10_000)
    send_batch(db, S, ["last"], channels=["small"])
    tick(db, S)
    seen: set[str] = set()

    def come() -> bool:
        other.execute(f"set transaction isolation level {isolation}")
        value(other, "select 1 from headgate.stream for key share")  # it has an id: open
        got = receive_now(other, 10_000)
        seen.update(m.data for m in got)
        ack(other, S, C, got)
        other.commit()
        return "last" in seen

    wait_until(come, 20)


def test_maintenance_moves_the_gatherer_of_a_consumer_that_nobody_else_moves(db: Db) -> None:
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["x"] * 100, channels=[f"c{i}" for i in range(100)])
    tick(db, S)
    gatherer = (
        "select to_tick = (select max(id) from headgate.tick where base = id) from headgate.cursor where lane = -1"
    )
    assert not value(db, gatherer)
    db.execute("update headgate.cursor set served_at = served_at - interval '1 minute'")

    def moved() -> bool:
        call(db, "maintain")
        return bool(value(db, gatherer))

    wait_until(moved, 10)
    assert value(db, "select count(*) from headgate.cursor where lane > 0") == 100


def test_an_open_receive_that_takes_a_wake_does_not_hold_up_new_lanes(db: Db, other: Db) -> None:
    """E6: after a redrive, for a lane whose cursor was forgotten."""
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C, max_deliver=1)
    send(db, S, "fails", channel="a")
    nack(db, S, C, receive(db, S, C))
    assert receive(db, S, C) == []
    pass_time(db, "10 minutes")
    db.execute(
        "update headgate.cursor set served_at = clock_timestamp() - interval '1 hour', "
        "rate_since = served_at - interval '1 hour'"
    )
    wait_until(lambda: call(db, "maintain") and value(db, "select count(*) from headgate.cursor where lane > 0") == 0)
    call(db, "redrive", S, C, all=True)
    value(other, "select pg_current_xact_id()")
    assert [m.data for m in receive_now(other)] == ["fails"]
    send_batch(db, S, ["new"], channels=["b"])
    gather(db, {"new"})


class TestMovingAConsumer:
    """E7: seek, retry_now, discard and redrive do not stop the consumer while a transaction is in their way."""

    @pytest.fixture(params=["hash", "channel"])
    def parked(self, db: Db, request: pytest.FixtureRequest) -> list[int]:
        """A stream with four parked messages, two dead letters, and 40 that were not read."""
        lane_by = request.param
        where = {"channels": [f"x{i}" for i in range(4)]} if lane_by == "channel" else {}
        call(db, "create_stream", S, lane_by=lane_by, lanes=8)
        call(db, "create_consumer", S, C, max_deliver=2)
        send_batch(db, S, ["p0", "p1", "p2", "p3"], keys=list("abcd"), **where)
        got = receive(db, S, C, 4)
        assert len(got) == 4
        nack(db, S, C, got, delay="1 hour")
        more = {"channels": [f"x{i}" for i in range(40)]} if lane_by == "channel" else {}
        send_batch(db, S, [f"m{i}" for i in range(40)], keys=[f"k{i}" for i in range(40)], **more)
        tick(db, S)
        return seqs(got)

    @pytest.mark.alone
    @pytest.mark.parametrize("action", ["seek", "drop_consumer"])
    @pytest.mark.parametrize("held_by", ["receive", "ack"])
    def test_what_moves_all_of_it_gives_up(
        self, db: Db, other: Db, parked: list[int], action: str, held_by: str, database_url: str
    ) -> None:
        if held_by == "receive":
            mine = first_receive(other, 2)
        else:
            mine = receive_now(db, 4)
            assert ack(other, S, C, mine[:1]) == (1, 0)
        answers: list[str | None] = []

        def move() -> None:
            with psycopg.connect(database_url, autocommit=True) as admin:
                try:
                    call(admin, action, S, C, *(["beginning"] if action == "seek" else []))
                except psycopg.errors.LockNotAvailable as error:
                    answers.append(error.diag.message_hint)

        thread = threading.Thread(target=move)
        began = time.monotonic()
        thread.start()
        received = 0
        while thread.is_alive():
            received += len(receive_now(db, 2))
        assert time.monotonic() - began < PATIENCE + 1
        assert answers == ["repeat the call once it has ended; pg_stat_activity shows open transactions (xact_start)"]
        assert received > 10, "the others went on meanwhile"
        other.commit()
        with at_once():
            call(db, action, S, C, *(["beginning"] if action == "seek" else []))
        assert mine

    @pytest.mark.alone
    @pytest.mark.parametrize("action", ["retry_now", "discard"])
    def test_what_changes_parked_messages_waits_for_nobody(
        self, db: Db, other: Db, third: Db, parked: list[int], action: str
    ) -> None:
        mine = first_receive(other, 2)
        with at_once():
            if action == "discard":
                assert discard(third, S, C, parked) == (4, 0, None)
            else:
                assert call(third, action, S, C, parked) == 4  # and leaves its transaction open
        with at_once():
            others: set[str] = set()
            while batch := receive_now(db):
                others.update(m.data for m in batch)
        assert {m.data for m in mine} | others == {f"m{i}" for i in range(40)} - (
            {f"m{i}" for i in range(40)} - {m.data for m in mine} - others
        )
        assert len(others) > 5
        third.rollback()
        assert facts(db, S, C)["parked"] == 4

    @pytest.mark.alone
    def test_retry_now_twice_beside_open_receives(self, db: Db, other: Db, third: Db, parked: list[int]) -> None:
        """E8: each waited for what the other one had received."""
        receive_now(other, 2)
        receive_now(third, 2)
        with at_once():
            assert call(other, "retry_now", S, C, parked[:2]) == 2
            assert call(third, "retry_now", S, C, parked[2:]) == 2
            assert call(other, "retry_now", S, C, parked[2:]) == 0
            assert call(third, "retry_now", S, C, parked[:2]) == 0
        other.commit()
        third.commit()
        found: set[int] = set()

        def come() -> bool:
            found.update(seqs(receive_now(db)))
            return found >= set(parked)

        wait_until(come)

    @pytest.mark.alone
    def test_redrive_waits_for_nobody(self, db: Db, other: Db, third: Db, parked: list[int]) -> None:
        call(db, "retry_now", S, C, all=True)
        wait_until(
            lambda: nack(db, S, C, [m for m in receive_now(db) if m.seq in parked]) and facts(db, S, C)["dead"] == 4
        )
        first_receive(other, 2)
        with at_once():
            assert call(third, "redrive", S, C, all=True) == 4
        with at_once():
            receive_now(db)
        other.rollback()
        third.commit()
        found: set[int] = set()

        def come() -> bool:
            found.update(seqs(receive_now(db)))
            return found >= set(parked)

        wait_until(come)


def test_an_open_receive_lets_go_of_lanes_that_gave_it_nothing(db: Db, other: Db) -> None:
    """Its key is in flight elsewhere; another key of that lane must not wait for the transaction's end."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key")
    send_batch(db, S, ["a1"], keys=["a"])
    tick(db, S)
    assert [m.data for m in receive_now(db)] == ["a1"]
    send_batch(db, S, ["a2"], keys=["a"])
    value(other, "select pg_current_xact_id()")
    assert receive_now(other) == []
    send_batch(db, S, ["b"], keys=["b"])
    gather(db, {"b"})


# On a busy machine a first receive is seen as part of an open transaction (2 ms), and then late acks are refused.
@pytest.mark.alone
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_a_first_receive_takes_apart_no_more_than_it_may_hand_out(db: Db, other: Db, lanes: int) -> None:
    """Single messages whose own deadlines have passed lie in all lanes: others get them, and late acks count."""
    call(db, "create_stream", S, lanes=lanes)
    call(db, "create_consumer", S, C)
    send_batch(db, S, [f"m{i}" for i in range(40)], keys=[f"k{i}" for i in range(40)])
    tick(db, S)
    got = [m for _ in range(2 * lanes) for m in receive(db, S, C, 40)]
    assert len(got) == 40
    for m in got:
        extend(db, S, C, [m], "1 second")
    pass_time(db, "2 seconds")
    [held] = first_receive(other)
    late = [m for m in got if m.seq != held.seq]
    with at_once():
        assert ack(db, S, C, late) == (39, 0)
    other.rollback()
    gather(db, {held.data})


@pytest.mark.alone
def test_limits_of_a_channel_that_an_open_transaction_holds(db: Db, other: Db) -> None:
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C, max_concurrency=1)
    send_batch(db, S, ["a"], channels=["x"])
    ack(db, S, C, receive(db, S, C))
    send_batch(db, S, ["b", "c"], channels=["x", "x"])
    tick(db, S)
    assert len(first_receive(other, 2)) == 1
    with at_once(), pytest.raises(psycopg.errors.LockNotAvailable):
        call(db, "set_channel", S, C, "x", max_concurrency=2)
    with at_once():
        db.execute("select headgate.alter_consumer(%s, %s, max_concurrency => 2)", (S, C))
    other.commit()
    gather(db, {"c"})


@pytest.mark.alone
def test_receives_that_take_apart_each_others_deliveries(db: Db, other: Db, third: Db) -> None:
    """E8: then each acks, too late, what the other one has taken apart."""
    call(db, "create_stream", S, lane_by="key")
    call(db, "create_consumer", S, C, ack_wait="100 milliseconds")
    send_batch(db, S, ["a", "b", "c", "d"], keys=list("abcd"))
    tick(db, S)
    one = receive_now(db, 2)
    two = receive_now(db, 2)
    assert len(one) == len(two) == 2
    wait_until(lambda: value(db, "select bool_and(deadline < clock_timestamp()) from headgate.delivery"))
    taken = [{m.seq for m in receive_now(session, 2)} for session in (other, third)]
    with at_once():
        first = ack(other, S, C, two)
        second = ack(third, S, C, one)
    # what they have parked and not got themselves is nobody's: there an ack still counts
    assert first[0] <= len({m.seq for m in two} - taken[0])
    assert second[0] <= len({m.seq for m in one} - taken[1])
    other.commit()
    third.commit()


def test_dropping_a_consumer_beside_heartbeats(db: Db, database_url: str) -> None:
    """E8: they lock the same rows in another order."""
    call(db, "create_stream", S)
    errors: list[BaseException] = []
    stop = threading.Event()

    def beat(i: int) -> None:
        with psycopg.connect(database_url, autocommit=True) as session:
            while not stop.is_set():
                try:
                    call(session, "heartbeat", S, C, f"w{i}")
                except (psycopg.errors.RaiseException, psycopg.errors.LockNotAvailable):
                    pass
                except psycopg.Error as error:
                    if error.sqlstate not in ("HG003", "55P03"):
                        errors.append(error)

    threads = [threading.Thread(target=beat, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            call(db, "create_consumer", S, C, leased=True)
            time.sleep(0.01)
            for _ in range(20):
                try:
                    call(db, "drop_consumer", S, C)
                    break
                except psycopg.errors.LockNotAvailable:
                    continue
            else:
                pytest.fail("it was never dropped")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.parametrize("lane_by", ["key", "channel"])
def test_a_lane_that_waits_for_later_is_looked_at(db: Db, other: Db, lane_by: str) -> None:
    """One of its messages is delayed. What is sent to it then comes at once, also to a transaction that was open."""
    call(db, "create_stream", "waits", lane_by=lane_by)
    call(db, "create_consumer", "waits", "c")
    where = {"channel": "x"} if lane_by == "channel" else {}
    call(db, "send", "waits", "later", "k", delay="1 hour", **where)
    assert receive(db, "waits", "c") == []
    call(db, "send", "waits", "now", "k", **where)
    other.execute("select pg_sleep(0.005)")
    assert [m.data for m in receive(other, "waits", "c")] == ["now"]
