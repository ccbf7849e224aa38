"""Streams in many tables: there are never too many, and those that have them can be dropped."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from headgate.database import schema
from support.calls import Db, call, column, receive, send, send_batch, tick, value
from support.postgres import NewCluster
from support.storage import create, maintain
from support.waiting import wait_until

TABLES = "select count(*) from pg_class where relname ~ '^(message|dropped|kept|seq)_%s(_[0-9]+)?$' and relkind <> 'i'"


def tables(db: Db, stream: int) -> int:
    return int(value(db, TABLES.replace("%s", str(stream))))


def add_segments(db: Db, stream: int, n: int) -> None:
    """As they were made before there was a limit, some in a transaction."""
    while n > 0:
        with db.transaction():
            db.execute(f"lock table only headgate.message_{stream} in share update exclusive mode")
            last, end = db.execute(
                "select max(id), max(end_seq) from headgate.segment where stream = %s", [stream]
            ).fetchone() or (0, 0)
            for i in range(min(n, 20)):
                first = end + i * 1000
                db.execute(
                    f"create table headgate.message_{stream}_{last + i + 1} partition of headgate.message_{stream} "
                    f"for values from ({first}) to ({first + 1000})"
                )
                db.execute(
                    "insert into headgate.segment (stream, id, first_seq, end_seq) values (%s, %s, %s, %s)",
                    [stream, last + i + 1, first, first + 1000],
                )
        n -= 20


def pretend_segments(db: Db, stream: int, n: int) -> None:
    """Rows of segments without tables."""
    db.execute(
        "insert into headgate.segment (stream, id, first_seq, end_seq, state) "
        "select %s, -i, -i, -i + 1, 'closed' from generate_series(1, %s) i",
        [stream, n],
    )


class TestTheirNumber:
    def test_small_ones_grow(self, db: Db) -> None:
        """Three million messages in segments of a thousand would be 3,000 tables."""
        call(db, "create_stream", "s", segment_rows=1000)
        while (last := value(db, "select headgate.last_seq(1)")) < 3_000_000:
            end = value(db, "select max(end_seq) from headgate.segment")
            db.execute("select count(nextval('headgate.seq_1')) from generate_series(1, %s)", [end - 1 - last])
            send(db, "s", "x")
        assert value(db, "select headgate.segment_tables(1)") < 280
        sizes = column(db, "select end_seq - first_seq from headgate.segment order by id")
        assert sizes[:100] == [1000] * 100
        assert sizes[-1] >= 16_000
        ends = db.execute("select first_seq, end_seq from headgate.segment order by id").fetchall()
        assert all(a[1] == b[0] for a, b in pairwise(ends))

    def test_much_room_at_once_is_few_tables(self, db: Db) -> None:
        call(db, "create_stream", "s", segment_rows=1000)
        call(db, "make_room", "s", 1_000_000_000)
        assert value(db, "select max(end_seq) from headgate.segment") > 1_000_000_000
        assert value(db, "select headgate.segment_tables(1)") < 150

    @pytest.mark.parametrize("by", ["age", "size"])
    def test_they_are_not_ended_early_when_there_are_many(self, db: Db, by: str) -> None:
        limit: dict[str, object] = {"segment_age": "1 second"} if by == "age" else {"segment_bytes": 65536}
        create(db, segment_rows=10_000, **{"segment_age": None} | limit)
        send_batch(db, "s", ["x" * 1000] * 200)
        db.execute("update headgate.message_1 set created_at = created_at - interval '10 seconds'")
        ends = "select headgate.end_segment(s) from headgate.stream s"
        pretend_segments(db, 1, 250)
        assert value(db, ends) == 0
        db.execute("delete from headgate.segment where id < 0")
        assert value(db, ends) > 0

    def test_emptied_ones_do_not_pile_up(self, db: Db) -> None:
        """Their tables go, also while there are always more segments to empty."""
        create(db, segment_rows=1000, segment_age=None, retain_up_to="1 hour")
        for _ in range(5):
            send_batch(db, "s", ["x"] * 10_000)
        tick(db, "s")

        def closed() -> bool:
            tick(db, "s")
            db.execute("select headgate.prepare_storage()")
            return int(value(db, "select count(*) from headgate.segment where state = 'closed'")) >= 49

        wait_until(closed)
        db.execute("update headgate.segment set last_at = last_at - interval '2 hours'")
        most = 0
        emptied = "select count(*) from headgate.segment where state = 'dropped'"

        def gone() -> bool:
            nonlocal most
            maintain(db)
            most = max(most, value(db, emptied))
            return not value(db, "select count(*) from headgate.segment where state <> 'open'")

        wait_until(gone)
        assert most < 32


class TestTheDoctor:
    def test_too_many(self, db: Db) -> None:
        call(db, "create_stream", "s", segment_age="1 minute")
        findings = "select advice from headgate.doctor() where subject = 'stream s' and finding ~ 'segments'"
        assert column(db, findings) == []
        pretend_segments(db, 1, 400)
        [advice] = column(db, findings)
        for statement in re.findall(r"(?:select|alter system) .*?;", advice):
            db.execute(statement)
        rows, age = db.execute("select segment_rows, segment_age::text from headgate.stream").fetchone() or (0, "")
        assert (rows, age) == (16_000_000, "00:16:00")
        db.execute("alter system reset max_locks_per_transaction")

    def test_what_is_left_of_a_dropped_stream(self, db: Db) -> None:
        call(db, "create_stream", "s", segment_rows=1000)
        add_segments(db, 1, 120)
        call(db, "drop_stream", "s")
        [finding] = column(db, "select finding from headgate.doctor() where subject = 'stream s'")
        assert "of its tables are still there" in finding


def small_lock_table(new_cluster: NewCluster) -> str:
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute("alter system set max_locks_per_transaction = 10")
        db.execute("alter system set max_connections = 30")
    cluster.stop("fast")
    cluster.start()
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute(schema.install_sql().encode())
    return cluster.url()


class TestDropping:
    def test_more_segments_than_the_server_has_locks_for(self, new_cluster: NewCluster) -> None:
        url = small_lock_table(new_cluster)
        with psycopg.connect(url, autocommit=True) as db:
            call(db, "create_stream", "s", segment_rows=1000)
            add_segments(db, 1, 500)
            send(db, "s", "x", key="k")
            call(db, "create_consumer", "s", "c")
            call(db, "drop_stream", "s")
            assert column(db, "select name from headgate.stream") == []
            assert column(db, "select name from headgate.consumer") == []
            left = tables(db, 1)
            assert 0 < left < 500
            assert call(db, "create_stream", "s") == 2, "the name is free"
            assert send(db, "s", "y") == [1]
            call(db, "create_consumer", "s", "c", start="beginning")
            assert [m.data for m in receive(db, "s", "c")] == ["y"]
            seen = [left]

            def gone() -> bool:
                maintain(db)
                seen.append(tables(db, 1))
                return seen[-1] == 0

            wait_until(gone)
            assert all(a - b <= 52 for a, b in pairwise(seen)), "so many a transaction at most"
            assert value(db, "select count(*) from headgate.dropped_stream") == 0
            assert column(db, "select name from headgate.stream") == ["s"]

    def test_a_reader_that_is_still_there(self, db: Db, database_url: str) -> None:
        """Somebody looks at the tables of a stream that is gone: maintenance does not wait, nor does anybody for it."""
        stream = call(db, "create_stream", "s", segment_rows=1000)
        add_segments(db, stream, 200)
        call(db, "drop_stream", "s")
        with psycopg.connect(database_url) as reader:
            reader.execute(f"select count(*) from headgate.dropped_{stream}")
            left = tables(db, stream)
            maintain(db)
            assert tables(db, stream) == left
        wait_until(lambda: maintain(db).get("drop segments", 0) == 0 and tables(db, stream) == 0)

    def test_few_are_gone_at_once(self, db: Db) -> None:
        stream: Any = call(db, "create_stream", "s", segment_rows=1000)
        assert tables(db, stream) > 50
        call(db, "drop_stream", "s")
        assert tables(db, stream) == 0
        assert value(db, "select count(*) from headgate.dropped_stream") == 0
