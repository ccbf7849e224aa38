"""`consumer.transaction()`: work and ack commit together, so that effects happen exactly once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import psycopg
import pytest

import headgate
from support.waiting import wait_until


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("create table done (n int)")
    with headgate.connect(database_url) as hg:
        yield hg


@pytest.fixture
def stream(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True)


def done(hg: headgate.Headgate) -> list[int]:
    return [row[0] for row in hg.run("select n from done order by n", ())]


def test_commit(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True)
    stream.send_batch([1, 2, 3])
    with consumer.transaction(10, wait=5) as (tx, messages):
        for m in messages:
            tx.execute("insert into done values (%s)", [m.data])
        assert done(hg) == [], "nobody sees it yet"
        assert consumer.info().in_flight == len(messages)
    while consumer.info().lag:
        with consumer.transaction(10, wait=5) as (tx, messages):
            for m in messages:
                tx.execute("insert into done values (%s)", [m.data])
    assert done(hg) == [1, 2, 3]


def test_nothing_to_do(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    with stream.consumer("c", create=True).transaction(10) as (tx, messages):
        assert messages == []
        tx.execute("insert into done values (0)")
    assert done(hg) == [0]


def test_sending_on(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """What the work sends is part of it."""
    consumer = stream.consumer("c", create=True)
    out = hg.stream("out", create=True)
    results = out.consumer("r", create=True)
    stream.send(1)
    with pytest.raises(ZeroDivisionError), consumer.transaction(wait=5) as (tx, messages):
        out.send("rolled back", conn=tx)
        raise ZeroDivisionError
    with consumer.transaction(wait=5) as (tx, messages):
        assert messages[0].attempt == 2
        out.send("committed", conn=tx)
        assert results.receive(10, wait=0.05) == []
    assert [m.data for m in results.receive(10, wait=5)] == ["committed"]


def test_an_exception_rolls_back_and_nacks(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True, backoff=60)
    stream.send(1)
    with pytest.raises(ValueError, match="no good"), consumer.transaction(wait=5) as (tx, messages):
        tx.execute("insert into done values (%s)", [messages[0].data])
        raise ValueError("no good")
    assert done(hg) == []
    [peeked] = consumer.peek()
    assert (peeked.state, peeked.attempt, peeked.last_error) == ("parked", 1, "ValueError: no good")


def test_an_error_in_the_users_sql(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True)
    stream.send(1)
    with pytest.raises(psycopg.errors.UndefinedTable), consumer.transaction(wait=5) as (tx, _):
        tx.execute("insert into nothing values (1)")
    assert consumer.peek()[0].last_error
    with consumer.transaction(wait=5) as (_, messages):
        assert [m.attempt for m in messages] == [2]


def test_an_error_at_the_commit(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True)
    stream.send(1)
    with hg.pool.connection() as own:
        own.execute("create table once (n int unique deferrable initially deferred)")
    with pytest.raises(psycopg.errors.UniqueViolation), consumer.transaction(wait=5) as (tx, _):
        tx.execute("insert into once values (1), (1)")
    assert consumer.peek()[0].state == "parked"
    assert "UniqueViolation" in str(consumer.peek()[0].last_error)


def test_too_late(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """The deadline passed and another worker has the message: the work is rolled back, that worker's counts."""
    consumer = stream.consumer("c", create=True, ack_wait=0.05)
    stream.send(1)
    with pytest.raises(headgate.errors.StaleDelivery, match=r"1 of 1 messages[\s\S]*hint: raise"):
        with consumer.transaction(wait=5) as (tx, messages):
            tx.execute("insert into done values (100)")
            [other] = consumer.receive(wait=5)
            assert other.seq == messages[0].seq
            assert other.extend(60)
    assert done(hg) == []
    assert consumer.info().in_flight == 1, "the other worker still has it"
    assert other.ack()


def test_the_deadline_passes_but_nobody_came(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """Then the work counts: the ack and another claim exclude each other."""
    consumer = stream.consumer("c", create=True, ack_wait=0.02)
    stream.send(1)
    with consumer.transaction(wait=5) as (tx, _):
        tx.execute("insert into done values (1)")
        tx.execute("select pg_sleep(0.05)")
    assert done(hg) == [1]
    assert consumer.receive(wait=0.1) == []


def test_a_nack_that_cannot_be_made_hides_nothing(database_url: str, stream: headgate.Stream) -> None:
    """What went wrong in the block is what is raised, also when the consumer is gone by then."""
    consumer = stream.consumer("c", create=True)
    stream.send(1)
    with pytest.raises(ZeroDivisionError), consumer.transaction(wait=5):
        consumer.drop()
        raise ZeroDivisionError


def test_a_keyboard_interrupt(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """Also what is no Exception rolls back and nacks."""
    consumer = stream.consumer("c", create=True)
    stream.send(1)
    with pytest.raises(KeyboardInterrupt), consumer.transaction(wait=5) as (tx, _):
        tx.execute("insert into done values (1)")
        raise KeyboardInterrupt
    assert done(hg) == []
    assert consumer.receive(wait=5)[0].attempt == 2


DIES = """
import sys, os, signal, headgate
with headgate.connect(sys.argv[1]) as hg:
    consumer = hg.stream("orders").consumer("c")
    with consumer.transaction(10, wait=10) as (tx, messages):
        for m in messages:
            tx.execute("insert into done values (%s)", [m.data])
        assert messages
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_between_the_work_and_the_commit(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """Twice a worker is killed with its work done but not committed; in the end everything was done once."""
    consumer = stream.consumer("c", create=True, ack_wait=0.5)
    stream.send_batch([1, 2, 3])
    for _ in range(2):
        died = subprocess.run(
            [sys.executable, "-c", DIES, hg.url], capture_output=True, text=True, timeout=60, check=False
        )
        assert died.returncode == -9, died.stderr
        assert done(hg) == []
    attempts = []
    while consumer.info().lag:
        with consumer.transaction(10, wait=5) as (tx, messages):
            for m in messages:
                tx.execute("insert into done values (%s)", [m.data])
            attempts += [m.attempt for m in messages]
    assert done(hg) == [1, 2, 3]
    assert max(attempts) >= 2


def test_workers_in_a_hurry(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """Six workers whose deadlines keep passing; some raise, some are too late. Every effect once."""
    consumer = stream.consumer("c", create=True, ack_wait=0.03)
    stream.send_batch(list(range(150)))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        rounds = 0
        try:
            while consumer.info().lag and rounds < 2000:
                rounds += 1
                try:
                    with consumer.transaction(10, wait=0.05) as (tx, messages):
                        for m in messages:
                            tx.execute("insert into done values (%s)", [m.data])
                        if rounds % 3 == 0:
                            tx.execute("select pg_sleep(0.06)")
                        if rounds % 7 == number:
                            raise ZeroDivisionError
                except (headgate.errors.StaleDelivery, ZeroDivisionError, headgate.errors.Conflict):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[n]) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    wait_until(lambda: consumer.info().lag == 0)
    assert done(hg) == list(range(150))


class TestSettlingInTheBlock:
    """What the block settles itself is part of its transaction; what it leaves is acked at its end."""

    def test_one_is_acked(self, hg: headgate.Headgate, stream: headgate.Stream) -> None:
        consumer = stream.consumer("c", create=True)
        stream.send_batch([(None, n) for n in (1, 2, 3)])
        seen = 0
        while seen < 3:
            with consumer.transaction(10, wait=5) as (tx, messages):
                assert messages[0].ack(conn=tx)
                tx.execute("insert into done values (%s)", [messages[0].data])
            seen += len(messages)
        info = consumer.info()
        assert (info.lag, info.in_flight, info.parked, info.redelivered) == (0, 0, 0, 0)
        assert done(hg)

    @pytest.mark.parametrize("how", ["conn=tx", "no conn", "consumer.nack"])
    def test_one_is_nacked(self, hg: headgate.Headgate, stream: headgate.Stream, how: str) -> None:
        """It comes again after its delay; the rest and the work are committed."""
        consumer = hg.stream("one", create=True, lanes=1).consumer("c", create=True)
        hg.stream("one").send_batch([1, 2, 3])
        with consumer.transaction(10, wait=5) as (tx, messages):
            assert len(messages) == 3
            tx.execute("insert into done values (1)")
            if how == "conn=tx":
                assert messages[1].nack(delay=60, error="later", conn=tx)
            elif how == "no conn":
                assert messages[1].nack(delay=60, error="later")
            else:
                assert consumer.nack([messages[1]], delay=60, error="later", conn=tx).settled == 1
        assert done(hg) == [1]
        states = {p.data: (p.state, p.last_error) for p in consumer.peek(states=["parked", "delivered", "available"])}
        assert states == {2: ("parked", "later")}

    def test_an_ack_in_a_block_that_raises_is_undone(self, hg: headgate.Headgate, stream: headgate.Stream) -> None:
        """Also one that did not say conn=tx: the message would be gone and its work rolled back."""
        consumer = stream.consumer("c", create=True, backoff=60)
        stream.send(1)
        with pytest.raises(ZeroDivisionError), consumer.transaction(wait=5) as (tx, [m]):
            tx.execute("insert into done values (1)")
            assert m.ack()
            raise ZeroDivisionError
        assert done(hg) == []
        assert consumer.peek()[0].state == "parked"

    @pytest.mark.parametrize("fails", [False, True])
    def test_all_are_acked_by_the_consumer(self, hg: headgate.Headgate, stream: headgate.Stream, fails: bool) -> None:
        """`consumer.ack(messages)` belongs to the transaction as `m.ack()` does."""
        consumer = stream.consumer("c", create=True, backoff=60)
        stream.send(1)
        with contextlib.suppress(ZeroDivisionError), consumer.transaction(wait=5) as (tx, messages):
            tx.execute("insert into done values (1)")
            assert consumer.ack(messages).settled == 1
            assert 1 / (not fails)
        assert (done(hg), consumer.peek()[0].state) == (([], "parked") if fails else ([1], "done"))

    def test_an_ack_in_a_savepoint_that_is_rolled_back(self, hg: headgate.Headgate, stream: headgate.Stream) -> None:
        consumer = stream.consumer("c", create=True)
        stream.send(1)
        with consumer.transaction(wait=5) as (tx, [m]):
            with tx.transaction(force_rollback=True):
                assert m.nack(conn=tx)
        info = consumer.info()
        assert (info.lag, info.in_flight, info.parked) == (0, 0, 0)

    def test_one_that_was_taken_away_is_still_told_of(self, hg: headgate.Headgate, stream: headgate.Stream) -> None:
        consumer = stream.consumer("c", create=True, ack_wait=0.05)
        stream.send(1)
        with pytest.raises(headgate.errors.StaleDelivery, match="1 of 1 messages"):
            with consumer.transaction(wait=5) as (tx, [m]):
                tx.execute("insert into done values (1)")
                [other] = consumer.receive(wait=5)
                assert other.extend(60)
                assert not m.ack(conn=tx)
        assert done(hg) == []


def test_what_a_block_sets_ends_with_it(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    """Settings, role and temporary tables of a block are not the next one's who gets the connection."""
    consumer = stream.consumer("c", create=True)
    asked = "select current_setting('search_path'), current_user, current_setting('default_transaction_isolation')"
    before = hg.run(asked)
    with consumer.transaction() as (tx, _):
        tx.execute("set search_path = pg_catalog")
        tx.execute("create temp table scratch (n int)")
        tx.execute("set role headgate_monitor")
        pid = tx.info.backend_pid
    assert hg.run(asked) == before == [('"$user", public', "postgres", "read committed")]
    assert hg.run("select pg_backend_pid(), to_regclass('scratch')::text") == [(pid, None)]
