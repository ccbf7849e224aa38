"""Rows that were there before, read beside the changes: complete, in order, and never older than what came already."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate
from headgate.postgres.cluster import Cluster
from headgate.replication import setup, wire
from headgate.replication.assembling import Assembler
from headgate.replication.backfill import Backfill, Rows, load, read_chunk
from headgate.replication.changes import Table
from headgate.replication.connections import connect
from headgate.replication.feed import Feed
from headgate.replication.pgoutput import Relation
from headgate.replication.snapshots import RecentChanges, Snapshot
from support.calls import value
from support.postgres import SETTINGS
from support.source_databases import source_database
from support.source_readers import Reading, caught_up, connected, messages, wait_until

Db = psycopg.Connection[Any]


@pytest.fixture
def source_url(source_cluster: Cluster) -> Iterator[str]:
    with source_database(source_cluster) as url:
        yield url


def is_done(hg: headgate.Headgate) -> bool:
    return {b.state for b in hg.sources.backfills("shop")} == {"done"}


# --- snapshots


@given(st.integers(0, 2**40), st.integers(0, 2**20), st.data())
def test_snapshots_know_epochs(xmin: int, more: int, data: st.DataObject) -> None:
    """The WAL has the lower 32 bits of a transaction's number."""
    xmax = xmin + more
    running = data.draw(st.frozensets(st.integers(xmin, max(xmin, xmax - 1)), max_size=5)) if more else frozenset()
    text = f"{xmin}:{xmax}:{','.join(map(str, sorted(running)))}"
    snapshot = Snapshot.read(text)
    xid = data.draw(st.integers(max(0, xmin - 1000), xmax + 1000))
    assert snapshot.full(xid % 2**32) == xid
    assert snapshot.sees(xid % 2**32) == (xid < xmax and xid not in running)


def test_recent_changes() -> None:
    recent = RecentChanges()
    recent.note(10, "a", "t")
    recent.note(12, "b", "t")
    recent.note(13, "c", "u", is_whole=True)
    assert recent.hidden_from(Snapshot.read("12:13:12")) == ({"b"}, {"u"})
    recent.forget(Snapshot.read("12:13:12"))
    assert len(recent) == 2
    recent.forget(Snapshot.read("20:20:"))
    assert len(recent) == 0


# --- a real server


def tables_rebuilt(found: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """All tables, by key, from the messages alone: what an update or a new key leaves out is taken from before."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    moved: dict[str, dict[str, Any]] = {}
    for m in found:
        about = m["metadata"]
        rows = tables.setdefault(about["table"], {})
        if m["action"] == "truncate":
            rows.clear()
        elif m["action"] == "delete":
            if (gone := rows.pop(m["key"], None)) is not None:
                moved[m["key"]] = gone
        else:
            before = moved.get(about["old_key"], {}) if "old_key" in about else rows.get(m["key"], {})
            kept = {c: before[c] for c in about["unchanged"] if c in before}
            rows[m["key"]] = {**m["record"], **kept}
    return tables


def test_rows_of_before(hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]) -> None:
    hg.stream("changes", create=True)
    with connected(source_url) as source:
        source.execute('create table "od%d" (b text, "a%s" int, n numeric, primary key ("a%s", b))')
        source.execute("""insert into "od%d" select 'x' || i % 7, i / 7, 1.50 from generate_series(1, 1000) i""")
        source.execute("create table keyless (n int); alter table keyless replica identity full")
        source.execute("create table parts (id int primary key, large text) partition by range (id)")
        source.execute("create table part1 partition of parts for values from (0) to (10)")
        source.execute("insert into parts values (1, 'x')")
        hg.sources.add_postgres("shop", "changes", url=source_url, tables=["*"], backfill=True)
        reading()
        wait_until(lambda: {b.state for b in hg.sources.backfills("shop")} == {"done", "failed"})
        odd, keyless, parts = sorted(hg.sources.backfills("shop"), key=lambda b: b.table)
        assert (odd.table, odd.state, odd.rows) == ('public."od%d"', "done", 1000)
        assert (keyless.table, keyless.state) == ("public.keyless", "failed")
        assert "no primary key" in (keyless.error or "")
        assert (parts.table, parts.rows) == ("public.parts", 1)
        found = messages(db)
        assert {m["action"] for m in found} == {"read"}
        assert len(found) == 1001
        [row] = [m for m in found if m["key"] == "public.od%25d.x3.1"]
        assert row["record"] == {"b": "x3", "a%s": 1, "n": "1.50"}
        source.execute("""update "od%d" set n = 'NaN' where b = 'x3' and "a%s" = 1""")
        caught_up(hg, source)
        update = messages(db)[-1]
        assert (update["key"], update["metadata"]["schema_version"]) == (row["key"], row["metadata"]["schema_version"])


def test_beside_changes_and_kills(
    hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]
) -> None:
    """Random writes and kills while rows are read: the stream alone gives the tables, also what was not sent again."""
    hg.stream("changes", create=True)
    rng = random.Random(7)
    with connected(source_url) as source, connected(source_url) as writer:
        source.execute("create table orders (id int primary key, n int, large text)")
        source.execute("alter table orders alter large set storage external")
        source.execute("insert into orders select i, 0, repeat(i::text, 600) from generate_series(1, 3000) i")
        hg.sources.add_postgres("shop", "changes", url=source_url, tables=["orders"], backfill=True)
        done = threading.Event()
        writing = threading.Thread(target=write_at_random, args=(writer, random.Random(7), done))
        writing.start()
        try:
            reader, standby = reading(), reading()
            for part in (200, 1000):
                wait_until(lambda part=part: sum(b.rows for b in hg.sources.backfills("shop")) >= part)  # type: ignore[misc]
                done.wait(rng.random() * 0.1)
                if f":{standby.process.pid}:" in (hg.sources.postgres("shop").reader or ""):
                    reader, standby = standby, reader
                reader.kill()
                reader, standby = standby, reading()
            wait_until(lambda: is_done(hg))
        finally:
            done.set()
            writing.join()
        caught_up(hg, source)
        expected = {
            f"public.orders.{r[0]}": {"id": r[0], "n": r[1], "large": r[2]}
            for r in source.execute("select id, n, large from orders").fetchall()
        }
        assert tables_rebuilt(messages(db))["orders"] == expected


@pytest.mark.slow  # (test_beside_changes_and_kills is the short one)
def test_many_kinds_of_tables(hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]) -> None:
    """Composite keys, no key, partitions, enums; keys that change; tables that are altered and emptied meanwhile."""
    hg.stream("changes", create=True)
    rng = random.Random(3)
    with connected(source_url) as source:
        source.execute("create type mood as enum ('happy', 'sad')")
        source.execute("create table pairs (a int, b text, n numeric, m mood, l text[], primary key (b, a))")
        source.execute("create table bag (n int, t text); alter table bag replica identity full")
        source.execute("create table parts (id int primary key, n int) partition by range (id)")
        source.execute("create table part1 partition of parts for values from (0) to (50)")
        source.execute("create table part2 partition of parts for values from (50) to (100)")
        source.execute("insert into pairs select i, i % 3, 'NaN', 'sad', '{}' from generate_series(1, 300) i")
        source.execute("insert into parts select i, 0 from generate_series(1, 99) i")
        hg.sources.add_postgres("shop", "changes", url=source_url, tables=["pairs", "bag", "parts"])
        hg.sources.backfill("shop", ["public.pairs", "public.parts"])
        reader = reading()
        alter = iter(
            ["add c int default 7", "rename c to d", "alter n type text", "drop d", "add e numeric default 1.5"]
        )
        for turn in range(250):
            k = rng.randrange(1, 400)
            with source.transaction(force_rollback=rng.random() < 0.1):
                source.execute("insert into pairs (a, b, m) values (%s, 'x.y', 'happy') on conflict do nothing", (k,))
                source.execute("update pairs set l = array[%s, null], a = a + %s where a = %s and b <> 'x.y'",
                               (str(turn), rng.choice([0, 1000]), k))  # fmt: skip
                source.execute("delete from pairs where a = %s", (rng.randrange(1, 400),))
                source.execute("insert into bag values (%s, %s)", (k % 5, str(turn)))
                source.execute("update bag set n = n + 1 where n = %s", (rng.randrange(5),))
                source.execute("delete from bag where n = 3")
                source.execute("update parts set n = %s where id = %s", (turn, k % 100))
                source.execute("update parts set id = 99 - id where id = %s and not exists (select from parts p "
                               "where p.id = 99 - %s)", (k % 100, k % 100))  # fmt: skip
                source.execute("delete from parts where id = %s", (rng.randrange(100),))
                if turn % 100 == 99:
                    source.execute("truncate bag, parts")
            if turn % 50 == 49:
                source.execute(f"alter table pairs {next(alter)}")
            if turn == 120:
                reader.kill()
                reader = reading()
        wait_until(lambda: is_done(hg))
        caught_up(hg, source)
        found = messages(db)
        rebuilt = tables_rebuilt([m for m in found if m["metadata"]["table"] != "bag"])
        rows = source.execute("select to_jsonb(p) from pairs p").fetchall()
        alike = {(r["a"], r["b"]): r for (r,) in rows}
        # What a row has of columns that were added or retyped without touching it is as it was told last.
        assert {(r["a"], r["b"]): (r["m"], r["l"]) for r in rebuilt["pairs"].values()} == {
            key: (r["m"], r["l"]) for key, r in alike.items()
        }
        expected = dict(source.execute("select id, n from parts").fetchall())
        assert {r["id"]: r["n"] for r in rebuilt["parts"].values()} == expected
        bag: Counter[tuple[int, str]] = Counter()
        for m in (m for m in found if m["metadata"]["table"] == "bag"):
            if m["action"] == "truncate":
                bag.clear()
                continue
            row, old = m["record"], {**m["record"], **(m["changes"] or {})}
            bag[row["n"], row["t"]] += 0 if m["action"] == "delete" else 1
            if m["action"] != "insert":
                bag[old["n"], old["t"]] -= 1
        assert +bag == Counter(source.execute("select n, t from bag").fetchall())


def write_at_random(db: Db, rng: random.Random, done: threading.Event) -> None:
    next_id, n = 10_000, 0
    while not done.is_set():
        n += 1
        with db.transaction(force_rollback=rng.random() < 0.1):
            for _ in range(rng.choice([1, 3, 20])):
                some, action = rng.randrange(1, 3000), rng.random()
                if action < 0.5:
                    db.execute("update orders set n = %s where id = %s", (n, some))
                elif action < 0.7:
                    db.execute("delete from orders where id = %s", (some,))
                elif action < 0.8:
                    db.execute("update orders set id = %s where id = %s", (next_id := next_id + 1, some))
                else:
                    db.execute("insert into orders values (%s, %s, repeat('y', 3000))", (next_id := next_id + 1, n))
        done.wait(0.005)


@pytest.fixture
def waiting_cluster(bin_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    """A server with a table of 50 rows, whose commits can be made to wait for a standby that is not there."""
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", settings=SETTINGS)
    cluster.init()
    cluster.start()
    with connected(cluster.url()) as source:
        source.execute("create table orders (id int primary key, n int, large text)")
        source.execute("alter table orders alter large set storage external")
        source.execute("insert into orders select i, 1, repeat('x', 3000) from generate_series(1, 50) i")
    yield cluster
    cluster.stop("immediate")


def hold_commits(source: Db) -> None:
    source.execute("alter system set synchronous_standby_names = 'absent'")
    source.execute("select pg_reload_conf()")
    wait_until(lambda: value(source, "show synchronous_standby_names") == "absent")


def release_commits(source: Db) -> None:
    source.execute("alter system reset synchronous_standby_names")
    source.execute("select pg_reload_conf()")


def test_no_stale_row_after_a_newer_one(
    hg: headgate.Headgate, db: Db, waiting_cluster: Cluster, reading: Callable[[], Reading]
) -> None:
    """A commit that waits for a standby is in the WAL and not visible: what is read from the table is still old."""
    url = waiting_cluster.url()
    hg.stream("changes", create=True)
    with connected(url) as source:
        hg.sources.add_postgres("shop", "changes", url=url, tables=["orders"])
        reading()
        caught_up(hg, source)
        hold_commits(source)
        held = [update_held(url, 7), update_held(url, 8)]
        wait_until(lambda: len(messages(db)) == 2)
        assert value(source, "select sum(n) from orders") == 50, "the updates are visible already"
        hg.sources.backfill("shop")
        wait_until(lambda: hg.sources.backfills("shop")[0].state == "running")
        held.append(update_held(url, 9))
        wait_until(lambda: "public.orders.9" in {m["key"] for m in messages(db)})
        caught_up(hg, source)
        release_commits(source)
        for thread in held:
            thread.join()
        wait_until(lambda: is_done(hg))
        rows = tables_rebuilt(messages(db))["orders"]
        assert {r["id"]: r["n"] for r in rows.values()} == {i: 2 if i in (7, 8, 9) else 1 for i in range(1, 51)}
        assert all(len(r["large"]) == 3000 for r in rows.values())


async def test_rows_that_something_unseen_has_changed_are_read_again(waiting_cluster: Cluster) -> None:
    """The change comes while a backfill runs, between its chunks."""
    url = waiting_cluster.url()
    made = setup.prepare(url, "shop", ["orders"])
    backfill, start = Backfill("shop", made.publication), wire.lsn_number(made.lsn)
    assembler = Assembler(start, lambda x, key, table, whole: backfill.recent.note(x, key, table, is_whole=whole))
    feed = await Feed.open(url, made.slot, made.publication, start)

    async def pump(until: Callable[[], bool]) -> list[tuple[str, str, int]]:
        """Reads until something holds; key, action and n of what came."""
        while not until():
            for frame in await feed.read():
                found = assembler.push(frame)
                if isinstance(found, Relation):
                    assembler.learn(Table.of(found, {}))
                backfill.offer(assembler)
        keys, datas = assembler.take().parts.get(None, ([], []))
        decoded = [json.loads(d) for d in datas]
        return [(k, d["action"], d["record"]["n"]) for k, d in zip(keys, decoded, strict=True)]

    try:
        with connected(url) as db:
            async with await connect(url) as source:
                rows = await load(
                    source, "shop", made.publication, ("public.orders", datetime.now(UTC), None, [], *[None] * 4), {}
                )
                assert isinstance(rows, Rows)
                hold_commits(db)
                held = update_held(url, 7)
                came = await pump(lambda: assembler.is_filled and assembler.is_between)
                assert came == [("public.orders.7", "update", 2)]
                backfill.chunk = chunk = await read_chunk(source, rows, 100)
                assert [m.key for _, m in chunk.found if '"n":2' in m.data] == [], "it is visible already"
                came = await pump(chunk.sent.done)
                assert len(came) == 49
                assert "public.orders.7" not in {key for key, _, _ in came}
                assert (chunk.sent.result().state, chunk.sent.result().again) == ("running", ['["7"]'])
                release_commits(db)
                held.join()
                backfill.chunk = chunk = await read_chunk(source, rows, 100)
                assert await pump(chunk.sent.done) == [("public.orders.7", "read", 2)]
                backfill.chunk = chunk = await read_chunk(source, rows, 100)
                assert await pump(chunk.sent.done) == []
                assert chunk.sent.result().state == "done"
    finally:
        await feed.close()


def update_held(url: str, id: int) -> threading.Thread:
    """An update whose commit waits for the standby."""

    def run() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("update orders set n = 2 where id = %s", (id,))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_data_is_json(hg: headgate.Headgate, db: Db, source_url: str, reading: Callable[[], Reading]) -> None:
    """Rows that are read look like rows that were changed."""
    hg.stream("changes", create=True)
    with connected(source_url) as source:
        source.execute("create type mood as enum ('happy')")
        source.execute("create type place as (x int, y text)")
        source.execute(
            "create table t (id int primary key, at timestamptz, b bytea, j jsonb, a int[], m mood, p place, f float8, "
            "g int generated always as (id * 2) stored)"
        )
        row = r"""insert into t values ({}, '2026-11-18 10:00+02', '\xff', '{{"a": 1}}', '{{1,2}}', 'happy', (1, 'z'),
                  'NaN')"""
        source.execute(row.format(1))
        hg.sources.add_postgres("shop", "changes", url=source_url, tables=["t"], backfill=True)
        reading()
        wait_until(lambda: is_done(hg))
        source.execute(row.format(2))
        caught_up(hg, source)
        read, insert = (m["record"] for m in messages(db))
        assert {**read, "id": 2, **({"g": 4} if "g" in read else {})} == insert
        assert read["at"] == "2026-11-18 08:00:00+00"
        assert json.dumps(read["p"]) == '{"x": 1, "y": "z"}'
