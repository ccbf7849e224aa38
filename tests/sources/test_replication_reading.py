"""Reading a slot into a stream: each change once, through kill -9; one reader at a time; large transactions."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.calls import column, value
from support.postgres import SETTINGS
from support.source_databases import source_database
from support.source_readers import Reading, caught_up, connected, messages, rebuilt, wait_until

Db = psycopg.Connection[Any]


@pytest.fixture
def reading(database_url: str) -> Iterator[Callable[[], Reading]]:
    """Starts processes that read; they are killed at the end."""
    started: list[Reading] = []

    def start() -> Reading:
        started.append(Reading(database_url))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def source_url(source_cluster: Cluster) -> Iterator[str]:
    with source_database(source_cluster) as url:
        yield url


@pytest.fixture
def newest_source_url(cluster: Cluster) -> Iterator[str]:
    """Of the PostgreSQL that is tested: where the version does not matter."""
    with source_database(cluster) as url:
        yield url


def test_changes_arrive(hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]) -> None:
    hg.stream("changes", create=True)
    with connected(source_url) as source:
        source.execute("create table orders (id int primary key, n numeric)")
        made = hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
        assert (made.state, made.tables, made.slot) == ("starting", ["public.orders"], "headgate_shop")
        reading()
        source.execute("insert into orders values (1, 1.10)")
        with source.transaction():
            source.execute("select pg_logical_emit_message(true, 'headgate.annotate', '{\"by\": \"ann\"}')")
            source.execute("update orders set n = 'NaN'")
        source.execute("delete from orders")
        caught_up(hg, source)
        found = messages(db)
        assert [(m["key"], m["action"], m["record"].get("n")) for m in found] == [
            ("public.orders.1", "insert", "1.10"), ("public.orders.1", "update", "NaN"),
            ("public.orders.1", "delete", None),
        ]  # fmt: skip
        assert [m["metadata"].get("annotations") for m in found] == [None, {"by": "ann"}, None]
        wait_until(lambda: hg.sources.postgres("shop").lag_bytes == 0)
        shop = hg.sources.postgres("shop")
        assert (shop.state, shop.error, shop.messages) == ("reading", None, 3)
        assert shop.reader
        if source.info.server_version >= 170000:
            assert value(source, "select failover from pg_replication_slots where slot_name = 'headgate_shop'")


def test_an_idle_source_does_not_keep_wal(
    hg: headgate.Headgate, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key)")
        source.execute("create table others (id int)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders"])
        reading()
        source.execute("insert into others select generate_series(1, 1000)")
        end = value(source, "select pg_current_wal_lsn()::text")
        query = "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = 'headgate_shop'"
        wait_until(lambda: value(source, query, end))


def test_pause_resume_and_remove(
    hg: headgate.Headgate, db: Db, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders"])
        reading()
        source.execute("insert into orders values (1)")
        caught_up(hg, source)
        hg.sources.pause("shop")
        slot = "select active from pg_replication_slots where slot_name = 'headgate_shop'"
        wait_until(lambda: value(source, slot) is False)
        source.execute("insert into orders values (2)")
        assert hg.sources.postgres("shop").state == "paused"
        hg.sources.resume("shop")
        caught_up(hg, source)
        assert [m["key"] for m in messages(db)] == ["public.orders.1", "public.orders.2"]
        with pytest.raises(headgate.Error, match='source "shop" sends to this stream'):
            hg.stream("changes").drop()
        with pytest.raises(headgate.errors.SourceExists):
            hg.sources.create("shop", "changes", scheme="none")
        hg.sources.remove_postgres("shop")
        assert column(source, "select slot_name from pg_replication_slots where database = current_database()") == []
        assert column(source, "select pubname from pg_publication") == []
        assert hg.sources.all_postgres() == []


def test_exactly_once_through_kills(
    hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    """Random writes while the reader is killed again and again: the stream alone gives the table, in order."""
    hg.stream("changes", create=True)
    rng = random.Random(18)
    with connected(source_url) as source, connected(source_url) as writer:
        source.execute("create table orders (id int primary key, n int, large text)")
        source.execute("alter table orders replica identity full, alter large set storage external")
        hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"])
        done = threading.Event()
        writing = threading.Thread(target=write_at_random, args=(writer, random.Random(18), done))
        writing.start()
        try:
            reader, standby = reading(), reading()
            for _ in range(3):
                before = hg.sources.postgres("shop").messages
                wait_until(lambda before=before: hg.sources.postgres("shop").messages > before)  # type: ignore[misc]
                done.wait(rng.random() * 0.3)
                reads = hg.sources.postgres("shop").reader or ""
                if f":{standby.process.pid}:" in reads:
                    reader, standby = standby, reader
                reader.kill()
                reader, standby = standby, reading()
        finally:
            done.set()
            writing.join()
        caught_up(hg, source)
        found = messages(db)
        expected = {r[0]: r for r in source.execute("select id, n, large from orders").fetchall()}
        assert {k: (r["id"], r["n"], r["large"]) for k, r in rebuilt(found, "orders").items()} == expected
        lsns = [m["metadata"]["commit_lsn"] for m in found]
        as_numbers = [tuple(int(x, 16) for x in lsn.split("/")) for lsn in lsns]
        assert as_numbers == sorted(as_numbers)
        assert hg.sources.postgres("shop").messages == len(found)


def write_at_random(db: Db, rng: random.Random, done: threading.Event) -> None:
    next_id, n = 1, 0
    while not done.is_set():
        n += 1
        with db.transaction(force_rollback=rng.random() < 0.1):
            for _ in range(rng.choice([1, 1, 2, 20])):
                action, some = rng.random(), rng.randrange(max(1, next_id - 200), next_id + 1)
                if action < 0.5:
                    db.execute(
                        "insert into orders values (%s, %s, repeat('x', %s))", (next_id, n, rng.choice([5, 5000]))
                    )
                    next_id += 1
                elif action < 0.8:
                    db.execute("update orders set n = %s where id = %s", (n, some))
                elif action < 0.995:
                    db.execute("delete from orders where id = %s", (some,))
                else:
                    db.execute("truncate orders")
        done.wait(0.002)


@pytest.mark.alone
def test_a_large_transaction_is_not_held(
    hg: headgate.Headgate, db: Db, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    """20,000 rows of 2,000 bytes in one transaction: they arrive together, and the reader stays small."""
    hg.stream("changes", create=True)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key, t text)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders"])
        reader = psutil.Process(reading().process.pid)
        source.execute("insert into orders values (0, 'first')")
        caught_up(hg, source)
        before = reader.memory_info().rss
        source.execute("insert into orders select i, repeat('x', 2000) from generate_series(1, 20000) i")
        most, counts = before, set()
        end = value(source, "select pg_current_wal_lsn()::text")
        while value(source, "select %s::pg_lsn > %s::pg_lsn", end, hg.sources.postgres("shop").lsn):
            most = max(most, reader.memory_info().rss)
            time.sleep(0.02)
            counts.add(hg.sources.postgres("shop").messages)
        assert hg.sources.postgres("shop").messages == 20_001
        assert counts <= {1, 20_001}, "it came in parts"
        assert most - before < 25_000_000


def test_another_takes_over(
    hg: headgate.Headgate, db: Db, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    """One reads; the other goes on when it dies, and also when it only seems dead and wakes up later."""
    hg.stream("changes", create=True)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders"])
        first, second = reading(), reading()
        source.execute("insert into orders values (1)")
        caught_up(hg, source)
        one = hg.sources.postgres("shop").reader
        assert one
        sleeper = first if f":{first.process.pid}:" in one else second
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        source.execute("insert into orders values (2)")
        caught_up(hg, source)
        other = hg.sources.postgres("shop").reader
        assert other
        assert other != one
        os.kill(sleeper.process.pid, signal.SIGCONT)
        for i in range(3, 40):
            source.execute("insert into orders values (%s)", (i,))
        caught_up(hg, source)
        (second if sleeper is first else first).kill()
        source.execute("insert into orders values (40)")
        caught_up(hg, source)
        assert [m["record"]["id"] for m in messages(db)] == list(range(1, 41))
        assert hg.sources.postgres("shop").reader == one


def test_nothing_is_lost_when_the_stream_refuses(
    hg: headgate.Headgate, db: Db, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    hg.stream("changes", create=True, max_message_bytes=2000)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key, t text)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders"])
        reading()
        source.execute("insert into orders values (1, repeat('x', 3000))")
        wait_until(lambda: hg.sources.postgres("shop").state == "failing")
        shop = hg.sources.postgres("shop")
        assert shop.error
        assert "is larger than stream" in shop.error
        assert messages(db) == []
        hg.stream("changes").alter(max_message_bytes=100_000)
        caught_up(hg, source)
        assert [m["key"] for m in messages(db)] == ["public.orders.1"]
        wait_until(lambda: hg.sources.postgres("shop").state == "reading")


def test_a_source_that_cannot_be_read_says_why(
    hg: headgate.Headgate, db: Db, newest_source_url: str, reading: Callable[[], Reading]
) -> None:
    """A dropped table is no trouble; a slot that is gone, or that is ahead of the stream, is never read on."""

    def state(wanted: str, says: str) -> None:
        def holds() -> bool:
            shop = hg.sources.postgres("shop")
            return shop.state == wanted and says in (shop.error or "")

        wait_until(holds)
        assert hg.sources.postgres("shop").hint

    hg.stream("changes", create=True)
    with connected(newest_source_url) as source:
        source.execute("create table orders (id int primary key)")
        source.execute("create table others (id int primary key)")
        hg.sources.add_postgres("shop", "changes", url=newest_source_url, tables=["orders", "others"])
        reading()
        source.execute("insert into others values (1)")
        source.execute("drop table others")
        source.execute("insert into orders values (1)")
        caught_up(hg, source)
        assert [m["key"] for m in messages(db)] == ["public.others.1", "public.orders.1"]
        hg.sources.pause("shop")
        wait_until(
            lambda: not value(source, "select active from pg_replication_slots where slot_name = 'headgate_shop'")
        )
        before = hg.sources.postgres("shop").lsn
        db.execute("update headgate.source_progress set lsn = lsn - 100000")  # as a restore of an old backup would
        hg.sources.resume("shop")
        state("lost", "ahead of what is in the stream")
        hg.sources.pause("shop")
        db.execute("update headgate.source_progress set lsn = %s::text::pg_lsn", (before,))
        db.execute("update headgate.postgres_source set system_identifier = '1'")
        hg.sources.resume("shop")
        state("lost", "leads to another server")
        hg.sources.pause("shop")
        db.execute("update headgate.postgres_source set system_identifier = (select system_identifier::text "
                   "from pg_control_system())")  # fmt: skip
        source.execute("select pg_drop_replication_slot('headgate_shop')")
        hg.sources.resume("shop")
        state("lost", "is gone: changes since")
        assert len(messages(db)) == 2


def test_the_source_crashes(
    hg: headgate.Headgate, db: Db, bin_dir: Path, tmp_path: Path, reading: Callable[[], Reading]
) -> None:
    """The server that is read is killed and comes back: reading goes on, and nothing is missing or twice."""
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", settings=SETTINGS | {"fsync": "on"})
    cluster.init()
    cluster.start()
    try:
        hg.stream("changes", create=True)
        with connected(cluster.url()) as source:
            source.execute("create table orders (id int primary key)")
            hg.sources.add_postgres("shop", "changes", url=cluster.url(), tables=["orders"])
            reading()
            source.execute("insert into orders values (1)")
            caught_up(hg, source)
            source.execute("insert into orders select generate_series(2, 500)")
            cluster.kill()
        wait_until(lambda: hg.sources.postgres("shop").state == "failing")
        cluster.start()
        with connected(cluster.url()) as source:
            source.execute("insert into orders values (501)")
            caught_up(hg, source)
        assert [m["record"]["id"] for m in messages(db)] == list(range(1, 502))
    finally:
        cluster.stop("immediate")
