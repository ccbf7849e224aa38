"""Upsert streams (one_message_per_key): of each key only the newest version is kept and handed out."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import psycopg
import pytest

import headgate
from support.calls import (
    Db,
    Received,
    ack,
    call,
    column,
    drain,
    facts,
    ids,
    nack,
    pass_time,
    receive,
    record,
    send,
    send_batch,
    tick,
    value,
)

S = "prices"
LOG = f'select data from headgate."log_{S}" order by seq'
STORED = "select data from headgate.message_1 order by seq"


@pytest.fixture(autouse=True, params=["hash", "key", "channel"])
def prices(request: pytest.FixtureRequest, db: Db) -> None:
    """One lane (also of channels: none is given), so that everything that could get in each other's way does."""
    call(db, "create_stream", S, lanes=1, lane_by=request.param, one_message_per_key=True)
    call(db, "create_consumer", S, "c", max_deliver=3)


def take(db: Db, n: int = 10) -> dict[str, Received]:
    return {m.data: m for m in receive(db, S, "c", n)}


class TestSend:
    def test_only_the_newest_version_is_kept(self, db: Db) -> None:
        [first] = send(db, S, "a1", key="a")
        send(db, S, "b1", key="b")
        [second] = send(db, S, "a2", key="a")
        assert second > first
        assert column(db, STORED) == column(db, LOG) == ["b1", "a2"]
        assert drain(db, S, "c") == ["a2", "b1"]
        assert facts(db, S, "c")["lag"] == 0

    def test_unmodified_is_ignored(self, db: Db) -> None:
        [first] = send(db, S, "a1", key="a")
        assert drain(db, S, "c") == ["a1"]
        assert send(db, S, "a1", key="a") == [first]
        assert drain(db, S, "c") == []
        assert send(db, S, "a2", "a1", key="a") == [first + 1, first + 2]  # back to what it was: modified
        assert drain(db, S, "c") == ["a1"]

    def test_process_unmodified(self, db: Db) -> None:
        call(db, "alter_stream", S, process_unmodified=True)
        first, second = send(db, S, "a1", "a1", key="a")
        assert first < second
        assert column(db, STORED) == ["a1"]
        assert drain(db, S, "c") == ["a1"]
        send(db, S, "a1", key="a")
        assert drain(db, S, "c") == ["a1"]

    def test_messages_without_a_key_are_plain(self, db: Db) -> None:
        send(db, S, "x", "x", "y")
        assert drain(db, S, "c") == ["x", "x", "y"]
        assert column(db, STORED) == ["x", "x", "y"]

    def test_a_batch_with_repeated_keys(self, db: Db) -> None:
        [old] = send(db, S, "a1", key="a")
        given = send_batch(
            db,
            S,
            ["a1", "b1", "a2", "a2", "-", "b1", "a1", "-", "b1"],
            keys=["a", "b", "a", "a", None, "b", "a", None, "b"],
            headers=[f'{{"n": {i}}}' for i in range(9)],
        )
        n = old + 1  # a1 is there; then b1, a2, -, a1, - are appended
        assert given == [old, n, n + 1, n + 1, n + 2, n, n + 3, n + 4, n]
        assert column(db, STORED) == ["b1", "-", "a1", "-"]
        assert column(db, "select headers ->> 'n' from headgate.message_1 order by seq") == ["1", "4", "6", "7"]
        assert drain(db, S, "c") == ["-", "-", "a1", "b1"]

    def test_nothing_modified_at_all(self, db: Db) -> None:
        seqs = send_batch(db, S, ["1", "2"], keys=["a", "b"])
        assert send_batch(db, S, ["1", "2"], keys=["a", "b"], ids=["x", "y"]) == seqs
        assert value(db, "select count(*) from headgate.message_1") == 2

    def test_with_message_ids(self, db: Db) -> None:
        [first] = send(db, S, "a1", key="a", id="1")
        [second] = send(db, S, "a2", key="a", id="2")
        assert send(db, S, "a3", key="a", id="2") == [second]
        assert first < second
        assert column(db, STORED) == ["a2"]

    def test_rolled_back(self, db: Db, database_url: str) -> None:
        send(db, S, "a1", key="a")
        with psycopg.connect(database_url) as other:
            send(other, S, "a2", key="a")
            other.rollback()
        assert column(db, STORED) == ["a1"]
        assert drain(db, S, "c") == ["a1"]

    @pytest.mark.parametrize("isolation", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
    def test_a_fixed_snapshot_does_not_fail(self, db: Db, database_url: str, isolation: psycopg.IsolationLevel) -> None:
        send(db, S, "a1", key="a")
        with psycopg.connect(database_url) as other:
            other.isolation_level = isolation
            other.execute("select count(*) from headgate.stream")
            send(db, S, "a2", key="a")
            send(other, S, "a3", key="a")
            other.commit()
        assert column(db, LOG) == ["a3"]
        assert drain(db, S, "c") == ["a3"]

    def test_looking_shows_only_the_newest(self, db: Db, database_url: str) -> None:
        """Two transactions at once: the second does not wait for the first, and leaves its version where it is."""
        send(db, S, "a1", key="a")
        with psycopg.connect(database_url) as other:
            send(other, S, "a2", key="a")
            send(db, S, "a3", key="a")
            other.commit()
        assert column(db, STORED) == ["a2", "a3"]
        assert column(db, LOG) == ["a3"]
        assert column(db, "select data from headgate.messages(%s)", S) == ["a3"]
        assert column(db, "select data from headgate.peek(%s, 'c')", S) == ["a3"]
        assert drain(db, S, "c") == ["a3"]
        assert facts(db, S, "c")["lag"] == 0
        done = db.execute("select task, done from headgate.maintain() where task = 'superseded versions'").fetchall()
        assert done == [("superseded versions", 1)]
        assert column(db, STORED) == ["a3"]

    def test_the_search_for_superseded_versions_goes_round(self, db: Db) -> None:
        db.execute("update headgate.stream set one_message_per_key = false")
        for version in "12":
            send_batch(db, S, [version] * 50, keys=[f"k{i:02}" for i in range(50)])
        db.execute("update headgate.stream set one_message_per_key = true")
        step = "select headgate.remove_superseded(s, 30) from headgate.stream s where s.id = 1"
        assert sum(value(db, step) for _ in range(6)) == 50
        assert column(db, STORED) == ["2"] * 50

    def test_from_python(self, database_url: str) -> None:
        with headgate.connect(database_url) as hg:
            stream = hg.stream("rates", create=True, one_message_per_key=True)
            rates = stream.consumer("c", create=True)
            stream.send({"usd": 1}, key="eur")
            stream.send({"usd": 2}, key="eur")
            assert rates.order == "key"
            assert [m.data for m in rates.receive(10, wait=5)] == [{"usd": 2}]


class TestWithheld:
    def test_a_key_in_flight_is_withheld_and_its_latest_comes_next(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        first = take(db)
        send(db, S, "a2", "a3", key="a")
        send(db, S, "b1", key="b")
        assert list(take(db)) == ["b1"]
        send(db, S, "a4", key="a")
        assert take(db) == {}
        assert ack(db, S, "c", list(first.values())) == (1, 0)
        assert list(take(db)) == ["a4"]

    def test_nacked_with_a_delay_then_updated(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        nack(db, S, "c", list(take(db).values()), "1 hour")
        assert take(db) == {}
        send(db, S, "a2", key="a")
        got = take(db)
        assert list(got) == ["a2"]
        assert facts(db, S, "c")["parked"] == 0
        ack(db, S, "c", list(got.values()))
        pass_time(db, "2 hours")
        assert take(db) == {}
        assert facts(db, S, "c")["lag"] == 0

    def test_updated_then_nacked_with_a_delay(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        first = take(db)
        send(db, S, "a2", key="a")
        assert take(db) == {}  # parks it behind a1
        assert nack(db, S, "c", list(first.values()), "1 hour") == (1, 0)
        got = take(db)
        assert list(got) == ["a2"]
        ack(db, S, "c", list(got.values()))
        pass_time(db, "2 hours")
        assert take(db) == {}
        assert facts(db, S, "c")["lag"] == 0

    def test_nacked_while_the_update_is_not_committed(self, db: Db, database_url: str) -> None:
        send(db, S, "a1", key="a")
        first = take(db)
        with psycopg.connect(database_url) as other:
            send(other, S, "a2", key="a")
            nack(db, S, "c", list(first.values()), "1 hour")
            assert take(db) == {}
            other.commit()
        assert list(take(db)) == ["a2"]

    def test_parked_behind_it_while_it_was_being_nacked(self, db: Db, database_url: str) -> None:
        """The nack did not see the update yet, and the receive not yet the nack."""
        send(db, S, "a1", key="a")
        first = take(db)
        with psycopg.connect(database_url) as other:
            nack(other, S, "c", list(first.values()), "1 hour")
            send(db, S, "a2", key="a")
            assert take(db) == {}
            other.commit()
        pass_time(db, "1 second")
        got = take(db)
        assert list(got) == ["a2"]
        ack(db, S, "c", list(got.values()))
        pass_time(db, "2 hours")
        assert take(db) == {}

    def test_expired_after_an_update(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        take(db)
        send(db, S, "a2", key="a")
        assert take(db) == {}
        pass_time(db, "1 minute")
        assert [(m.data, m.attempt) for m in receive(db, S, "c")] == [("a2", 1)]
        assert facts(db, S, "c")["lag"] == 1

    def test_expired_then_updated(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        take(db)
        pass_time(db, "1 minute")
        db.execute("select * from headgate.maintain()")
        send(db, S, "a2", key="a")
        tick(db, S)
        got = take(db)
        assert list(got)[-1] == "a2"
        ack(db, S, "c", list(got.values()))
        assert drain(db, S, "c") == []

    def test_released_after_an_update(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        first = take(db)
        send(db, S, "a2", key="a")
        assert take(db) == {}
        db.execute("select * from headgate.release(%s, 'c', %s)", [S, ids(list(first.values()))])
        assert list(take(db)) == ["a2"]

    def test_an_old_delay_does_not_hold_an_update(self, db: Db) -> None:
        send(db, S, "a1", key="a", delay="1 hour")
        assert take(db) == {}
        send(db, S, "a2", key="a")
        assert list(take(db)) == ["a2"]

    @pytest.mark.parametrize("updated", [False, True])
    def test_dead_letters_only_of_the_newest(self, db: Db, updated: bool) -> None:
        send(db, S, "a1", key="a")
        for _ in range(2):
            nack(db, S, "c", list(take(db).values()), "0")
        last = take(db)
        assert [m.attempt for m in last.values()] == [3]
        if updated:
            send(db, S, "a2", key="a")
        nack(db, S, "c", list(last.values()), "0")
        assert facts(db, S, "c")["dead"] == (0 if updated else 1)
        assert list(take(db)) == (["a2"] if updated else [])

    def test_a_version_that_commits_after_a_later_one_is_not_handed_out(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as other:
            send(other, S, "a1", key="a")
            send(db, S, "a2", key="a")
            assert drain(db, S, "c") == ["a2"]
            other.commit()
        assert drain(db, S, "c") == []
        assert facts(db, S, "c")["lag"] == 0


@pytest.mark.parametrize("lanes", [1, 4])
def test_many_senders_and_workers(db: Db, database_url: str, lanes: int) -> None:
    """The same few keys in transactions of several sends, in any order; workers fail now and then. Nobody deadlocks, no
    version comes after a newer one, and the last one of each key is the last that is handed out."""
    keys = [f"k{i}" for i in range(6)]
    if value(db, "select lane_by from headgate.stream where name = %s", S) == "hash":
        call(db, "set_lanes", S, lanes)
    call(db, "alter_consumer", S, "c", ack_wait="200 milliseconds", clear=["max_deliver"])
    done = threading.Event()
    failures: list[BaseException] = []
    handed_out: dict[str, list[int]] = defaultdict(list)
    lock = threading.Lock()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(database_url) as own:
            for i in range(60):
                for key in rng.sample(keys, rng.choice([1, 2, 4])):
                    send(own, S, f"{seed}.{i}.{rng.random()}", key=key)
                own.rollback() if rng.random() < 0.15 else own.commit()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(database_url, autocommit=True) as own:
            while True:
                finished = done.is_set()
                got = receive(own, S, "c", rng.choice([1, 3, 10]))
                for m in got:
                    fate = rng.random()
                    if fate < 0.1:
                        nack(own, S, "c", [m], rng.choice(["0", "10 milliseconds"]))
                    elif fate < 0.95:
                        with lock:
                            if ack(own, S, "c", [m]) == (1, 0):
                                handed_out[m.key or ""].append(m.seq)
                if finished and not got and facts(own, S, "c")["lag"] == 0:
                    return

    def guarded(what: object, seed: int) -> None:
        try:
            what(seed)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)
            raise

    writers = [threading.Thread(target=guarded, args=(write, i)) for i in range(5)]
    workers = [threading.Thread(target=guarded, args=(work, i)) for i in range(3)]
    for t in (*writers, *workers):
        t.start()
    for t in writers:
        t.join(60)
    done.set()
    for t in workers:
        t.join(30)
    assert not failures
    assert not any(t.is_alive() for t in workers), record(db, "select * from headgate.consumers")
    last = dict(db.execute(f'select key, seq from headgate."log_{S}"').fetchall())
    assert sorted(last) == keys
    for key in keys:
        assert handed_out[key] == sorted(set(handed_out[key]))
        assert handed_out[key][-1] == last[key]
