"""Ticks are thinned out while readers stand on them: nobody misses or repeats a message, and it is quick."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg
import pytest

from engine.test_reading import Mark, following, mark, read
from support.calls import Db, ack, call, column, datas, receive, send, tick, value
from support.waiting import wait_until

LATE_SEQS = 10_000  # a transaction that so many seqs pass by is late


def grow_old(db: Db, by: str = "1 minute") -> None:
    """All ticks but the newest are of one second, so long ago."""
    db.execute(
        "update headgate.tick set at = date_trunc('minute', clock_timestamp()) - %s::interval "
        "where id < (select max(id) from headgate.tick)",
        [by],
    )


def thin(db: Db) -> int:
    return int(value(db, "select headgate.thin_ticks(1)"))


def pass_by(db: Db) -> None:
    """Whoever has sent before and is still open is late from here on."""
    tick(db, "s")
    db.execute("select count(nextval('headgate.seq_1')) from generate_series(1, %s)", [LATE_SEQS])
    for _ in range(2):
        send(db, "s", "passing")
        tick(db, "s")


class TestMarks:
    def test_a_fixed_end_gives_the_same_later(self, db: Db, database_url: str) -> None:
        """The ranges of the late transaction move to a tick beyond the end, and are still found."""
        call(db, "create_stream", "s", lanes=2)
        with psycopg.connect(database_url) as late:
            expected = send(late, "s", "late")
            pass_by(db)
            start = mark(db)
            assert start["lo"] > expected[0]
            late.commit()
        expected += send(db, "s", "a", "b", "c")
        end = mark(db)
        assert sorted(read(db, start, following(db, start, until=end))) == expected
        for age in ("1 minute", "2 hours", "3 hours"):
            send(db, "s", "beyond")
            tick(db, "s")
            send(db, "s", "beyond")
            tick(db, "s")
            grow_old(db, age)
            assert thin(db) > 0
            assert value(db, "select count(*) from headgate.tick where id = %s", end["tick"]) == 0
            assert value(db, "select min(id) from headgate.tick where late is not null") > end["tick"]
            assert sorted(read(db, start, following(db, start, until=end))) == expected
            at, parts = start, []
            while (part := following(db, at, 2, end)) != at:
                parts += read(db, at, part)
                at = part
            assert sorted(parts) == expected

    def test_an_end_whose_tick_was_rolled_back(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", "s", lanes=2)
        with psycopg.connect(database_url) as late, psycopg.connect(database_url) as other:
            expected = send(late, "s", "late")
            pass_by(db)
            start = mark(db)
            late.commit()
            expected += send(db, "s", "a")
            end = mark(other)
            assert end["tick"] > start["tick"]
            other.rollback()
        assert value(db, "select count(*) from headgate.tick where id >= %s", end["tick"]) == 0
        assert sorted(read(db, start, following(db, start, until=end))) == expected

    @pytest.mark.parametrize("seed", range(4))
    def test_random_histories(self, db: Db, database_url: str, seed: int) -> None:
        """Readers with fixed ends and parts beside late transactions, ticks that grow old, and thinning. Each reader
        gets what committed, once, and a pair of marks always gives the same."""
        call(db, "create_stream", "s", lanes=2)
        rng = random.Random(seed)
        sent: list[int] = []
        writers: list[tuple[Db, list[int]]] = []
        positions = [mark(db, "beginning") for _ in range(3)]
        got: list[list[int]] = [[], [], []]
        ends: list[Mark | None] = [None, None, None]
        pairs: list[tuple[Mark, Mark, list[int]]] = []

        def read_on(i: int) -> bool:
            end = following(db, positions[i], rng.choice([None, 1, 3, 20]), ends[i])
            if end == positions[i]:
                ends[i] = None
                return False
            rows = read(db, positions[i], end)
            pairs.append((positions[i], end, rows))
            got[i] += rows
            positions[i] = end
            return True

        for _ in range(300):
            act = rng.random()
            if act < 0.15 and len(writers) < 4:
                connection = psycopg.connect(database_url)
                writers.append((connection, send(connection, "s", "late")))
            elif act < 0.3 and writers:
                connection, seqs = writers.pop(rng.randrange(len(writers)))
                if rng.random() < 0.8:
                    connection.commit()
                    sent += seqs
                connection.close()
            elif act < 0.4 and writers:
                connection, seqs = rng.choice(writers)
                seqs += send(connection, "s", "more")
            elif act < 0.55:
                sent += send(db, "s", "a")
            elif act < 0.65:
                tick(db, "s")
            elif act < 0.72:
                db.execute("select count(nextval('headgate.seq_1')) from generate_series(1, %s)", [LATE_SEQS])
            elif act < 0.8:
                i = rng.randrange(3)
                if ends[i] is None:
                    ends[i] = mark(db)
            elif act < 0.9:
                grow_old(db, rng.choice(["1 minute", "2 hours"]))
                thin(db)
            else:
                read_on(rng.randrange(3))
        for connection, seqs in writers:
            connection.commit()
            connection.close()
            sent += seqs
        for i in range(3):
            while read_on(i) or read_on(i):
                pass
            assert sorted(got[i]) == sorted(sent)
        for start, end, rows in pairs:
            assert read(db, start, end) == rows


@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in the middle of a span"])
def test_a_receive_that_waited_while_its_tick_was_thinned_out(
    db: Db, database_url: str, lane_by: str, busy: bool
) -> None:
    """It found its tick, had to wait, as for a rewrite of a small table, and goes on with that tick."""
    call(db, "create_stream", "s", lanes=1, lane_by=lane_by)
    call(db, "create_consumer", "s", "c", max_ack_pending=1000)
    named = {"channel": "n"} if lane_by == "channel" else {"key": "n"}
    got: list[str] = []
    with (
        psycopg.connect(database_url) as late,
        psycopg.connect(database_url) as holder,
        psycopg.connect(database_url, autocommit=True) as worker,
    ):
        send(late, "s", "late", **named)  # type: ignore[arg-type]
        pass_by(db)
        send(db, "s", "0", "1", **named)  # type: ignore[arg-type]
        while batch := receive(db, "s", "c", 100):
            got += datas(batch)
            ack(db, "s", "c", batch)
        if busy:
            send(db, "s", "2", "3", **named)  # type: ignore[arg-type]
            batch = receive(db, "s", "c", 1)
            got += datas(batch)
            ack(db, "s", "c", batch)
        late.commit()
        send(db, "s", "4", **named)  # type: ignore[arg-type]
        tick(db, "s")
        holder.execute("lock table headgate.delivery in access exclusive mode")
        query = "select data from headgate.receive('s', 'c', 100, open => false)"
        waiting = threading.Thread(target=lambda: got.extend(column(worker, query)))
        waiting.start()
        blocked = "select count(*) from pg_locks where pid = %s and not granted"
        wait_until(lambda: value(db, blocked, worker.info.backend_pid))
        for data in "567":
            send(db, "s", data, **named)  # type: ignore[arg-type]
            tick(db, "s")
        grow_old(db)
        assert thin(db) > 0
        holder.rollback()
        waiting.join()
    expected = ["0", "1", "4", "5", "6", "7", "late", "passing", "passing"] + (["2", "3"] if busy else [])

    def all_came() -> bool:
        got.extend(datas(receive(db, "s", "c", 100)))
        return len(got) >= len(expected)

    wait_until(all_came)
    assert sorted(got) == sorted(expected)
    assert receive(db, "s", "c", 100) == []


class TestSpeed:
    def pile_up(self, db: Db, n: int, seconds: int) -> None:
        """n ticks, in so many seconds of long ago, of which the planner knows nothing: it thinks that there is one."""
        db.execute("analyze headgate.tick")
        send(db, "s", "a")
        tick(db, "s")
        db.execute("alter table headgate.tick set (autovacuum_enabled = off)")
        db.execute(
            """insert into headgate.tick (stream, id, base, lo, hi0, hi, at, bound, snap, late)
               select 1, t.id, t.id, 0, 0, 0,
                      date_trunc('second', clock_timestamp()) - interval '10 minutes'
                        + interval '1 second' * (i * %s / %s),
                      '4', pg_current_snapshot(), case when i %% 100 = 0 then int8multirange(int8range(i, i + 1)) end
                 from generate_series(1, %s) i
                cross join lateral (select nextval('headgate.tick_id') as id where i > 0) t""",
            [seconds, n, n],
        )
        db.execute("update headgate.tick set at = at - interval '1 hour' where bound <> '4'")
        send(db, "s", "b")
        tick(db, "s")

    @pytest.mark.alone
    def test_a_pile_of_ticks_that_the_planner_does_not_know_of(self, db: Db) -> None:
        call(db, "create_stream", "s")
        self.pile_up(db, 40_000, 40)
        began = time.monotonic()
        calls, gone = 0, 0
        while found := thin(db):
            calls += 1
            gone += found
        assert time.monotonic() - began < 10
        assert calls >= 40_000 / 2000, "each looks at so many at most: a receive may have to wait for it"
        assert 40_000 - 100 < gone < 40_000
        late = value(db, "select range_agg(late) from headgate.tick")
        assert late == value(db, "select range_agg(int8range(i, i + 1)) from generate_series(100, 40000, 100) i"), (
            "nothing that late transactions left is forgotten"
        )

    @pytest.mark.alone
    def test_one_call_is_quick(self, db: Db) -> None:
        call(db, "create_stream", "s")
        self.pile_up(db, 40_000, 40)
        began = time.monotonic()
        assert thin(db) > 1900
        assert time.monotonic() - began < 2
        began = time.monotonic()
        done: dict[Any, int] = {}
        for task, _, n in db.execute("select task, subject, done from headgate.maintain()"):
            done[task] = n
        assert done["thin ticks"] > 15_000
        assert time.monotonic() - began < 2

    def test_ticks_that_are_kept_cost_nothing_later(self, db: Db) -> None:
        """A year has half a million minutes, of each of which one is kept."""
        call(db, "create_stream", "s")
        self.pile_up(db, 5000, 5000)
        db.execute(
            "update headgate.tick set at = at - interval '1 day' where at < clock_timestamp() - interval '1 minute'"
        )
        while thin(db):
            pass
        left = value(db, "select count(*) from headgate.tick")
        assert 80 < left < 200, "one a minute"
        with db.transaction():
            before = value(db, "select thinned_seconds from headgate.stream")
        assert before > 1000, "the next call begins there"

    def test_private_ticks_that_commit_late_go_too(self, db: Db, database_url: str) -> None:
        call(db, "create_stream", "s")
        call(db, "create_consumer", "s", "c")
        with psycopg.connect(database_url) as other:
            other.execute("create table unrelated ()")
            other.execute("select pg_sleep(0.01)")
            send(db, "s", "a")
            other.execute("select * from headgate.receive('s', 'c')")
            for _ in range(3):
                send(db, "s", "b")
                tick(db, "s")
            grow_old(db)
            thin(db)
            other.commit()
        private = "select count(*) from headgate.tick where base <> id"
        assert value(db, private) == 1
        grow_old(db)
        thin(db)
        assert value(db, private) == 0


def test_a_fixed_snapshot_thins_nothing(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s")
    for _ in range(5):
        send(db, "s", "a")
        tick(db, "s")
    grow_old(db)
    with psycopg.connect(database_url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert thin(other) == 0
    assert thin(db) > 0
