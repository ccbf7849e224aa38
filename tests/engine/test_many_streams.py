"""Many streams: a listing and a step of maintenance do not ask each stream's log, and say where figures are older."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.postgres.cluster import Cluster
from support.calls import value
from support.databases import new_database
from support.plans import Explained

Db = psycopg.Connection[Any]

STREAMS = 60
MESSAGES = 20
COUNTED = 50  # consumers that a statement counts, before it makes do with samples

LISTED = "select stream, name, unread, exact, floor, dead, sampled_at from headgate.consumers"
COUNTS = """
select s.name, c.name, f.unread from headgate.consumer c join headgate.stream s on s.id = c.stream
 cross join lateral headgate.consumer_facts(c) f
"""


def fill(db: Db, streams: int, messages: int = MESSAGES) -> None:
    """So many streams with three consumers each: `done` has read everything, `half` some, `new` nothing."""
    for n in range(streams):
        stream = f"s{n:04}"
        db.execute("select headgate.create_stream(%s, lanes => 4)", [stream])
        for consumer in ("done", "half", "new"):
            db.execute("select headgate.create_consumer(%s, %s)", [stream, consumer])
        db.execute("select headgate.send(%s, 'x', 'k' || n) from generate_series(1, %s) n", [stream, messages])
        receive(db, stream, "done", messages)
        db.execute("select headgate.receive(%s, 'done', 1)", [stream])  # there is no more, and it notices
        receive(db, stream, "half", messages // 2)


def receive(db: Db, stream: str, consumer: str, n: int) -> None:
    """Receives and acks so many messages."""
    while n > 0:
        found = db.execute("select ack_id from headgate.receive(%s, %s, %s)", [stream, consumer, n]).fetchall()
        ids = [row[0] for row in found]
        db.execute("select headgate.ack(%s, %s, %s)", [stream, consumer, ids])
        n -= len(ids)


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        fill(db, STREAMS)
        yield url


@pytest.fixture
def many(shared: str) -> Iterator[Db]:
    """60 streams with 3 consumers each, of which two are behind; no samples yet."""
    with psycopg.connect(shared, autocommit=True) as db:
        db.execute("delete from headgate.consumer_sample; delete from headgate.stream_sample")
        yield db


def sample(db: Db) -> None:
    """Takes samples of everything."""
    for _ in range(2):  # a call takes a hundred
        db.execute("select headgate.take_samples('1 minute')")


def expected() -> dict[tuple[str, str], int]:
    left = {"done": 0, "half": MESSAGES // 2, "new": MESSAGES}
    return {(f"s{n:04}", name): unread for n in range(STREAMS) for name, unread in left.items()}


class TestConsumers:
    def test_without_samples_all_are_counted(self, many: Db) -> None:
        rows = many.execute(LISTED).fetchall()
        assert {(r[0], r[1]): r[2] for r in rows} == expected()
        assert all(r[3] and r[6] is None for r in rows)

    def test_with_samples_fifty_are_counted_and_the_others_say_when(self, many: Db) -> None:
        sample(many)
        rows = many.execute(LISTED).fetchall()
        assert {(r[0], r[1]): r[2] for r in rows} == expected()
        assert sum(r[6] is not None for r in rows) == 2 * STREAMS - COUNTED
        assert all(r[3] == (r[6] is None) for r in rows)
        assert all(r[6] is None for r in rows if r[1] == "done")

    def test_who_has_read_everything_is_known_without_the_log(self, many: Db) -> None:
        with psycopg.connect(many.info.dsn, autocommit=True) as own:
            rows, ran = Explained(own).run(LISTED + " where name = 'done'")
        assert len(rows) == STREAMS
        assert not [n for statement in ran for n in statement.on("message_")]
        assert {r[4] for r in rows} == {MESSAGES}

    def test_a_list_of_many_reads_the_logs_of_fifty(self, many: Db) -> None:
        sample(many)
        with psycopg.connect(many.info.dsn, autocommit=True) as own:
            _, ran = Explained(own).run(LISTED)
        assert 0 < len([s for s in ran if s.on("message_")]) <= COUNTED

    def test_one_alone_is_counted(self, many: Db) -> None:
        sample(many)
        for n in range(STREAMS):
            row = many.execute(LISTED + " where stream = %s and name = 'new'", [f"s{n:04}"]).fetchone()
            assert row is not None
            assert (*row[2:4], row[6]) == (MESSAGES, True, None)

    def test_what_was_seen_moves_on_with_what_is_sent_and_handed_out(self, many: Db) -> None:
        sample(many)
        many.execute("select headgate.send('s0059', 'x', 'k' || n) from generate_series(1, 7) n")
        receive(many, "s0059", "half", 4)
        try:
            rows = {(r[0], r[1]): r for r in many.execute(LISTED).fetchall()}
            for stream, consumer, unread in many.execute(COUNTS).fetchall():
                assert rows[stream, consumer][2] == unread
            assert rows["s0059", "half"][6] is not None
        finally:
            many.execute("select headgate.drop_stream('s0059')")
            many.execute("select headgate.create_stream('s0059', lanes => 4)")
            for consumer in ("done", "half", "new"):
                many.execute("select headgate.create_consumer('s0059', %s)", [consumer])
            many.execute("select headgate.send('s0059', 'x', 'k' || n) from generate_series(1, %s) n", [MESSAGES])
            receive(many, "s0059", "done", MESSAGES)
            many.execute("select headgate.receive('s0059', 'done', 1)")
            receive(many, "s0059", "half", MESSAGES // 2)

    def test_old_samples_are_not_shown(self, many: Db) -> None:
        sample(many)
        many.execute("update headgate.consumer_sample set at = at - interval '6 minutes'")
        assert {r[6] for r in many.execute(LISTED).fetchall()} == {None}

    def test_a_seek_forgets_what_was_seen(self, many: Db) -> None:
        sample(many)
        with psycopg.connect(many.info.dsn) as other:
            other.execute("select headgate.seek('s0059', 'new', 'end')")
            assert value(other, "select count(*) from headgate.consumer_sample") == 3 * STREAMS - 1
            other.rollback()

    def test_an_open_transaction_that_forgot_a_sample_stops_nobody(self, many: Db) -> None:
        sample(many)
        many.execute("update headgate.consumer_sample set at = at - interval '1 minute'")
        with psycopg.connect(many.info.dsn) as other:
            other.execute("select headgate.seek('s0059', 'new', 'end')")
            many.execute("set statement_timeout = '10s'")
            sample(many)
            old = "select count(*) from headgate.consumer_sample where at < now() - interval '30 seconds'"
            assert value(many, old) == 1
            other.rollback()

    def test_one_process_at_a_time_takes_samples(self, many: Db) -> None:
        with psycopg.connect(many.info.dsn) as other:
            assert value(other, "select headgate.take_samples('1 minute')") > 0
            assert value(many, "select headgate.take_samples('1 minute')") == 0

    def test_a_step_goes_on_where_the_one_before_ended(self, many: Db) -> None:
        for join in ("hashjoin", "mergejoin", "nestloop"):  # whatever the plan
            many.execute(f"delete from headgate.consumer_sample; set enable_{join} = off")
            for n in range(1, 10):
                many.execute("update headgate.consumer_sample set at = at - interval '1 minute'")
                many.execute("select headgate.take_samples('0')")
                assert value(many, "select count(*) from headgate.consumer_sample") == min(n * 20, 3 * STREAMS)

    def test_few_consumers_need_no_samples(self, db: Db) -> None:
        fill(db, 1)
        assert value(db, "select headgate.take_samples('1 minute')") == 0


class TestStreams:
    def test_with_samples_fifty_are_counted(self, many: Db) -> None:
        listed = "select name, messages, exact, bytes, last_seq, sampled_at from headgate.streams order by name"
        counted = many.execute(listed).fetchall()
        assert all(row[2] and row[5] is None for row in counted)
        sample(many)
        rows = many.execute(listed).fetchall()
        assert [row[:2] for row in rows] == [row[:2] for row in counted]
        assert [row[3:5] for row in rows] == [row[3:5] for row in counted]
        assert sum(row[5] is not None for row in rows) == STREAMS - COUNTED

    def test_one_alone_is_counted(self, many: Db) -> None:
        sample(many)
        row = many.execute("select messages, exact, sampled_at from headgate.streams where name = 's0059'").fetchone()
        assert row == (MESSAGES, True, None)


class TestTurns:
    def test_each_has_its_turn_in_a_round(self, db: Db) -> None:
        ids = list(range(100, 170))
        had = [i for _ in range(10) for i in value(db, "select headgate.next_turns('stream', %s::int[], 7)", ids)]
        assert sorted(had) == ids

    def test_processes_share_the_turns(self, db: Db) -> None:
        ids = list(range(10))
        with psycopg.connect(db.info.dsn) as other:
            mine = value(db, "select headgate.next_turns('stream', %s::int[], 5)", ids)
            others = value(other, "select headgate.next_turns('stream', %s::int[], 5)", ids)
        assert sorted(mine + others) == ids

    def test_few_are_asked_once_each(self, db: Db) -> None:
        assert sorted(value(db, "select headgate.next_turns('stream', '{1,2,3}', 200)")) == [1, 2, 3]
        assert value(db, "select headgate.next_turns('stream', '{}', 200)") == []

    def test_two_steps_maintain_sixty_streams(self, many: Db) -> None:
        many.execute(
            "insert into headgate.message_id (stream, id, seq, at) "
            "select id, 'x', 1, now() - interval '1 day' from headgate.stream"
        )
        for _ in range(2):
            many.execute("select headgate.maintain()")
        assert value(many, "select count(*) from headgate.message_id") == 0

    def test_a_stream_that_always_has_something_to_free_does_not_starve_another(self, db: Db) -> None:
        for stream in ("a", "b"):
            db.execute("select headgate.create_stream(%s, segment_rows => 1000, retain_up_to => '1 hour')", [stream])
            for _ in range(20):
                db.execute("select headgate.send_batch(%s, array(select 'x' from generate_series(1, 1000)))", [stream])
            db.execute("select headgate.tick(%s)", [stream])
            for _ in range(8):
                db.execute("select headgate.prepare_storage()")
        db.execute("update headgate.segment set last_at = last_at - interval '2 hours' where state = 'closed'")
        freed = [{row[1] for row in db.execute("select * from headgate.free_storage()").fetchall()} for _ in range(2)]
        assert sorted(map(sorted, freed)) == [["a"], ["b"]]


def processor_ms(db: Db) -> float:
    """The processor time that the session has used, in milliseconds."""
    return int(Path(f"/proc/{db.info.backend_pid}/schedstat").read_text().split()[0]) / 1e6


@pytest.mark.slow
def test_a_thousand_streams(database_url: str) -> None:
    """1,000 streams x 3 consumers: a listing in 300 ms, a step of maintenance in 100 ms, of processor time."""

    def timed(db: Db, query: str, times: int) -> list[float]:
        took = []
        for _ in range(times):
            before = processor_ms(db)
            db.execute(query).fetchall()
            db.execute("select 1")  # the time is noted when the session waits again
            took.append(processor_ms(db) - before)
        return took

    with psycopg.connect(database_url, autocommit=True) as db:
        made = []
        for block in range(20):
            with psycopg.connect(database_url, autocommit=True) as own:  # a session keeps plans of every stream
                before = processor_ms(own)
                for n in range(50):
                    stream = f"s{block * 50 + n:04}"
                    own.execute("select headgate.create_stream(%s)", [stream])
                    for consumer in ("done", "half", "new"):
                        own.execute("select headgate.create_consumer(%s, %s)", [stream, consumer])
                    own.execute("select headgate.send(%s, 'x', 'k' || n) from generate_series(1, 20) n", [stream])
                    if n % 2:
                        receive(own, stream, "done", 20)
                        receive(own, stream, "half", 10)
                made.append(processor_ms(own) - before)
        steps: list[float] = []
        taken = "select count(*) from headgate.{}_sample"
        samples = f"select ({taken.format('consumer')}), ({taken.format('stream')})"
        while len(steps) < 50 or db.execute(samples).fetchone() != (3000, 1000):
            steps += timed(db, "select headgate.maintain()", 10)
            assert len(steps) < 1000
        assert statistics.median(steps) < 100
        assert statistics.quantiles(steps, n=20)[-1] < 150  # what a busy machine adds
        with psycopg.connect(database_url, autocommit=True) as new:
            assert min(timed(new, LISTED, 3)) < 300
            assert min(timed(new, "select * from headgate.consumers", 3)) < 300
            assert min(timed(new, "select * from headgate.streams", 3)) < 300
            assert min(timed(new, "select * from headgate.doctor()", 3)) < 1000
            assert min(timed(new, "select * from headgate.vitals()", 3)) < 50
        assert made[-1] < made[0] * 3  # the thousandth against the first
