"""Room in the log: each seq that is drawn has a segment, however many send at once, and nobody waits without end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import psycopg
import pytest

from support.calls import Db, call, column, send, send_batch, value

ROOM = 50_000  # seqs that a stream with small segments has ahead of need
LOCKED = """select count(*) from pg_locks where pid = %s and mode = 'ShareUpdateExclusiveLock'
             and relation = 'headgate.message_1'::regclass"""


def use_up(db: Db, leave: int, stream: int = 1) -> None:
    """Draws seqs until so many are left."""
    left = value(
        db,
        "select max(end_seq) - 1 - headgate.last_seq(%s) from headgate.segment where stream = %s",
        stream,
        stream,
    )
    db.execute(f"select count(nextval('headgate.seq_{stream}')) from generate_series(1, %s)", [left - leave])


@pytest.mark.parametrize("ids", [False, True], ids=["plain", "with ids"])
def test_many_large_sends_at_once(db: Db, database_url: str, ids: bool) -> None:
    call(db, "create_stream", "s", segment_rows=1000)
    start = threading.Barrier(6)

    def work(writer: int) -> list[int]:
        seqs: list[int] = []
        with psycopg.connect(database_url, autocommit=True) as other:
            start.wait()
            for i in range(2):
                names = [f"{writer}.{i}.{n}" for n in range(10_000)] if ids else None
                seqs += send_batch(other, "s", ["x"] * 10_000, ids=names)
        return seqs

    with ThreadPoolExecutor(6) as pool:
        seqs = [seq for found in pool.map(work, range(6)) for seq in found]
    assert len(set(seqs)) == 120_000
    assert value(db, "select count(*) from headgate.message_1") == 120_000


def test_many_staged_batches_at_once(db: Db, database_url: str) -> None:
    """The others draw what was left while a batch is moved."""
    call(db, "create_stream", "s", segment_rows=1000)
    start = threading.Barrier(6)

    def work(writer: int) -> int:
        with psycopg.connect(database_url, autocommit=True) as other:
            names = []
            for batch in (1, 2):
                table = call(other, "stage", "s", f"w{writer}", batch)
                other.execute(f"insert into headgate.{table} (data) select 'x' from generate_series(1, 12000)")
                names.append(table)
            start.wait()
            return sum(
                call(other, "send_staged", "s", f"w{writer}", batch, [table], [12_000])
                for batch, table in enumerate(names, 1)
            )

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 144_000
    assert value(db, "select count(*) from headgate.message_1") == 144_000


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_fixed_snapshot_from_before_the_segments(db: Db, database_url: str, level: psycopg.IsolationLevel) -> None:
    """It writes into segments that it cannot see, and makes more behind them."""
    call(db, "create_stream", "s", segment_rows=1000)
    with psycopg.connect(database_url) as old:
        old.isolation_level = level
        seqs = send(old, "s", "a")
        for _ in range(7):
            send_batch(db, "s", ["x"] * 10_000)
        seqs += send(old, "s", "b")
        use_up(db, 0)
        seqs += send_batch(old, "s", ["c"] * 3)
        seqs += send_batch(old, "s", ["d"] * 3, ids=["1", "2", "3"])
        old.commit()
    assert column(db, "select seq from headgate.message_1 where length(data) = 1 and data <> 'x' order by seq") == seqs
    ends = db.execute("select first_seq, end_seq from headgate.segment order by id").fetchall()
    assert all(a[1] == b[0] for a, b in pairwise(ends)), "without gaps"


class TestOpenTransactions:
    def test_one_makes_room_only_for_what_it_draws(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", "s", segment_rows=1000)
        use_up(db, 20)
        with psycopg.connect(database_url) as user:
            user.execute("select pg_sleep(0.01)")
            send_batch(user, "s", ["x"] * 10)
            assert value(db, LOCKED, user.info.backend_pid) == 0
            send_batch(user, "s", ["x"] * 20)
            assert value(db, LOCKED, user.info.backend_pid) == 1
            user.commit()
        assert value(db, "select count(*) from headgate.message_1") == 30

    def test_others_are_told_who_is_in_the_way(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", "s", segment_rows=1000)
        use_up(db, 5)
        with psycopg.connect(database_url) as user:
            user.execute("select pg_sleep(0.01)")
            send_batch(user, "s", ["x"] * 10)
            began = time.monotonic()
            refused: list[dict[str, list[str]]] = [{}, {"ids": ["1"]}]
            for arguments in refused:
                with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
                    send_batch(db, "s", ["y"], **arguments)
                assert f"session {user.info.backend_pid}" in str(caught.value)
                assert "make_room" in str(caught.value.diag.message_hint)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                call(db, "make_room", "s", 100_000)
            assert time.monotonic() - began < 10
            user.commit()
        send(db, "s", "y")
        assert value(db, "select count(*) from headgate.message_1") == 11

    def test_who_waits_goes_on_with_the_commit(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", "s", segment_rows=1000)
        use_up(db, 5)
        with psycopg.connect(database_url) as user, ThreadPoolExecutor(1) as pool:
            user.execute("select pg_sleep(0.01)")
            send_batch(user, "s", ["x"] * 10)
            waiting = pool.submit(send_batch, db, "s", ["y"] * 3)
            time.sleep(0.1)
            user.commit()
            assert len(waiting.result()) == 3

    def test_two_that_send_much_to_two_streams_in_opposite_order(self, db: Db, database_url: str) -> None:
        for name in ("a", "b"):
            call(db, "create_stream", name, segment_rows=1000)
        start = threading.Barrier(2)

        def work(first: str, second: str) -> str | None:
            with psycopg.connect(database_url) as user:
                try:
                    for _ in range(6):
                        send_batch(user, first, ["x"] * 10_000)
                    start.wait()
                    for _ in range(6):
                        send_batch(user, second, ["x"] * 10_000)
                except psycopg.Error as error:
                    return error.sqlstate
            return None

        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            ends = sorted(pool.map(work, "ab", "ba"), key=str)
        assert set(ends) <= {None, "55P03"}
        assert time.monotonic() - began < 30
        sent = sum(value(db, f"select count(*) from headgate.message_{i}") for i in (1, 2))
        assert sent == 120_000 * ends.count(None)
        send(db, "a", "x")
        send(db, "b", "x")
