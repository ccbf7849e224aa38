"""The promise as a whole: rebuilding tables of every kind from the stream alone gives exactly what the source has.

Random writes, schema changes and large transactions, with backfills running, commits that wait for a standby that is
not there, and readers killed at random. The short form is in the suite, the long one in `make soak`.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.calls import value
from support.postgres import SETTINGS
from support.source_readers import Reading, caught_up, connected, messages, wait_until

Db = psycopg.Connection[Any]
Row = dict[str, Any]

MAKE = [
    "create type mood as enum ('happy', 'sad', 'so so')",
    "create type place as (x int, y text)",
    "create table things (id int primary key, n numeric, f float8, at timestamptz, d date, m mood, l text[], j jsonb, "
    "k json, b bytea, r int4range, p place, t text, g int generated always as (id * 2) stored)",
    "alter table things alter t set storage external",
    "create table pairs (a int, b text, n int, t text, primary key (b, a))",
    "create table whole (id int primary key, n int, t text)",
    "alter table whole replica identity full, alter t set storage external",
    "create table bag (n int, t text)",
    "alter table bag replica identity full",
    "create table parts (id int primary key, n int) partition by range (id)",
    "create table part1 partition of parts for values from (0) to (500)",
    "create table part2 partition of parts for values from (500) to (1000000)",
    "insert into things (id, n, t) select i, i, repeat('x', 2500) from generate_series(1, 400) i",
    "insert into pairs select i, 'k.' || i % 7, 0, '%' from generate_series(1, 400) i",
    "insert into whole select i, 0, repeat('w', 2500) from generate_series(1, 200) i",
    "insert into parts select i, 0 from generate_series(300, 700) i",
]
KEYED = ["things", "pairs", "whole", "parts"]
NUMBERS = ["'NaN'", "'Infinity'", "'-Infinity'", "12345678901234567890.000000000123", "0", "null", "-1.50"]
MOMENTS = ["'infinity'", "'-infinity'", "'2026-11-18 10:00:00.000001+02'", "null", "'0044-03-15 12:00 BC'"]
DAYS, MOODS = ["null", "'infinity'", "'2026-11-18'"], ["null", "'so so'"]
TEXTS = ["''", "'é\"\\ 😀'", "repeat('y', 3000)", "null", "'a.b%c'", "'(1,\"2\")'"]
LISTS = ["'{}'", "null", """array['a,b', null, '"', '\\', 'NULL']""", "'{{a,b},{c,d}}'"]
JSONS = ["""'{"a": [1, null, 12345678901234567890]}'""", "null", "'\"x\"'"]
ALTERS = [
    "add c int default 7", "rename c to d", "alter n type text using n::text", "drop d", "add e numeric default 1.5",
    "alter t set storage extended", "rename e to f",
]  # fmt: skip


def write(db: Db, rng: random.Random) -> None:
    """Something that an application does."""
    k, one = rng.randrange(1, 900), rng.choice
    action = rng.randrange(12)
    if action == 0:
        db.execute(
            "insert into things (id, n, f, at, d, m, l, j, k, b, r, p, t) "  # type: ignore[arg-type]
            f"values ({k}, {one(NUMBERS)}, {one(NUMBERS[:3])}, {one(MOMENTS)}, {one(DAYS)}, {one(MOODS)}, "
            f"{one(LISTS)}, {one(JSONS)}, {one(JSONS)}, '\\x00ff',"
            f" '[1,{k + 2})', row({k}, {one(TEXTS)}), {one(TEXTS)}) on conflict (id) do update set n = excluded.n, "
            f"j = excluded.j, l = excluded.l, at = excluded.at"
        )
    elif action == 1:
        db.execute(f"update things set n = {one(NUMBERS)}, p = row({k}, {one(TEXTS)}) where id = {k}")  # type: ignore[arg-type]
    elif action == 2:
        db.execute(f"update things set id = id + 1000 where id = {k} and not exists "  # type: ignore[arg-type]
                   f"(select from things where id = {k} + 1000)")  # fmt: skip
    elif action == 3:
        db.execute("insert into pairs (a, b, t) values (%s, %s, 'x') on conflict do nothing",
                   (k, one(["a", "b.c", "%"])))  # fmt: skip
    elif action == 4:
        db.execute("update pairs set a = a + %s, t = %s where a = %s", (one([0, 5000]), str(k), k))
    elif action == 5:
        db.execute("delete from pairs where a between %s and %s", (k, k + 2))
        db.execute("delete from things where id = %s", (rng.randrange(1, 1900),))
    elif action == 6:
        db.execute("insert into bag values (%s, %s), (%s, 'twin'), (%s, 'twin')", (k % 5, str(k), k % 5, k % 5))
        db.execute("delete from bag where ctid in (select ctid from bag where n = %s limit 2)", (rng.randrange(5),))
    elif action == 7:
        db.execute("update bag set n = n + 1 where ctid in (select ctid from bag where n < 4 limit 3)")
    elif action == 8:
        db.execute("update parts set id = %s where id = %s and not exists (select from parts where id = %s)",
                   (k + 400, k, k + 400))  # fmt: skip
        db.execute("insert into parts values (%s, 1) on conflict (id) do update set n = parts.n + 1", (k,))
    elif action == 9:
        db.execute("delete from parts where id = %s", (k,))
        db.execute("update whole set n = n + 1 where id = %s", (k % 250,))
    elif action == 10:
        db.execute("insert into whole values (%s, 0, %s) on conflict (id) do update set t = excluded.t",
                   (k, one(["", "v" * 3000])))  # fmt: skip
        db.execute("update whole set id = id + 2000 where id = %s", (rng.randrange(1, 900),))
    else:
        db.execute("delete from whole where id = %s", (k,))


class Application:
    """Writes at random, in several sessions, until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + i),)) for i in range(3)]
        self.turns = 0
        self.errors: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def _run(self, rng: random.Random) -> None:
        try:
            with connected(self._url) as db:
                while not self._stop.is_set():
                    with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected), db.transaction():
                        for _ in range(rng.choice([1, 1, 3, 15])):
                            write(db, rng)
                        if rng.random() < 0.1:
                            raise psycopg.Rollback
                    self.turns += 1
                    if rng.random() < 0.01:
                        with suppress(psycopg.errors.DeadlockDetected):
                            db.execute(rng.choice(["truncate bag", "truncate parts, bag", "truncate pairs"]))  # type: ignore[arg-type]
                    self._stop.wait(rng.random() * 0.02)
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, "what the application does has to work"


def rebuilt(found: list[Row]) -> tuple[dict[str, dict[str, Row]], Counter[str]]:
    """The tables with keys, by key, and the bag: from the messages alone."""
    tables: dict[str, dict[str, Row]] = {t: {} for t in KEYED}
    moved: dict[str, Row] = {}
    bag: Counter[str] = Counter()
    last: dict[str, tuple[int, ...]] = {}
    for m in found:
        about, key, action = m["metadata"], m["key"], m["action"]
        if about["commit_lsn"] is not None:  # changes of a row come in the order in which they were committed
            at = tuple(int(x, 16) for x in about["commit_lsn"].split("/"))
            assert at >= last.get(key, (0, 0)), f"{key} is out of order"
            last[key] = at
        if about["table"] == "bag":
            if action == "truncate":
                bag.clear()
                continue
            new = json.dumps(m["record"])
            if action != "delete":
                bag[new] += 1
            if action != "insert":
                bag[json.dumps({**m["record"], **(m["changes"] or {})})] -= 1
            continue
        rows = tables[about["table"]]
        if action == "truncate":
            rows.clear()
        elif action == "delete":
            if (gone := rows.pop(key, None)) is not None:
                moved[key] = gone
        else:
            assert action != "insert" or key not in rows or about["table"] != "whole", f"{key} was inserted twice"
            before = moved.get(about["old_key"], {}) if "old_key" in about else rows.get(key, {})
            rows[key] = {**m["record"], **{c: before[c] for c in about["unchanged"] if c in before}}
    return tables, +bag


def differences(db: Db, table: str, rows: list[Row]) -> list[Any]:
    """What a table has and the rebuilt rows have not, or the other way round, as PostgreSQL reads and writes them."""
    columns = value(db, "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute "
                        "where attnum > 0 "
                        "and attrelid = %s::regclass and not attisdropped and attgenerated = ''", table)  # fmt: skip
    source = f"select row({columns})::text from {table}"
    again = f"select row({columns})::text from json_populate_recordset(null::{table}, %(rows)s::json)"
    query = f"({source} except all {again}) union all (select '-' || x.row from ({again} except all {source}) x (row))"
    return db.execute(query + " limit 3", {"rows": json.dumps(rows)}).fetchall()  # type: ignore[arg-type]


def check(db: Db, found: list[Row]) -> None:
    """That the messages alone give what the source has."""
    tables, bag = rebuilt(found)
    for table in KEYED:
        assert differences(db, table, [*tables[table].values()]) == [], table
    assert differences(db, "bag", [json.loads(row) for row in bag.elements()]) == []


def is_read(hg: headgate.Headgate) -> bool:
    found = hg.sources.backfills("shop")
    assert not [b for b in found if b.state == "failed"], found
    return {b.state for b in found} == {"done"}


def hold_commits(db: Db, is_held: bool) -> None:
    """Commits are in the log, and nobody sees them: they wait for a standby that is not there."""
    setting = "set synchronous_standby_names = 'absent'" if is_held else "reset synchronous_standby_names"
    db.execute(f"alter system {setting}")  # type: ignore[arg-type]
    db.execute("select pg_reload_conf()")


def rebuild(
    hg: headgate.Headgate, db: Db, url: str, reading: Callable[[], Reading], seed: int, rounds: int, large: int
) -> None:
    hg.stream("changes", create=True)
    rng = random.Random(seed)
    with connected(url) as source:
        for statement in MAKE:
            source.execute(statement)  # type: ignore[arg-type]
        hg.sources.add_postgres("shop", "changes", url=url, tables=["*"], backfill_rate=2000)
        hg.sources.backfill("shop", [f"public.{t}" for t in KEYED])
        application = Application(url, seed)
        readers = [reading(), reading()]
        alters = iter(ALTERS)
        try:
            for turn in range(rounds):
                before = application.turns
                wait_until(lambda before=before: application.turns > before + 20)  # type: ignore[misc]
                hold_commits(source, True)
                threading.Event().wait(rng.random())
                hold_commits(source, False)
                victim = rng.randrange(2)
                readers[victim].kill()
                readers[victim] = reading()
                for alter in alters:
                    with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                        source.execute(f"set lock_timeout = '10s'; alter table pairs {alter}")  # type: ignore[arg-type]
                        break
                if turn == rounds // 2:
                    source.execute(
                        "insert into whole select i, 0, 'large' from generate_series(10001, 10000 + %s) i", (large,)
                    )
                if turn % 3 == 2:
                    hg.sources.backfill("shop", [f"public.{rng.choice(KEYED)}"])
        finally:
            hold_commits(source, False)
            application.stop()
        hg.sources.alter_postgres("shop", backfill_rate=0)
        wait_until(lambda: is_read(hg))
        hg.sources.backfill("shop", ["public.pairs"])  # what an ALTER gives rows that nobody touches is not in the log
        wait_until(lambda: is_read(hg))
        caught_up(hg, source)
        check(source, messages(db))


@pytest.fixture
def url(bin_dir: Path, tmp_path: Path) -> Iterator[str]:
    cluster = Cluster(bin_dir, tmp_path / "data", tmp_path / "run", settings=SETTINGS)
    cluster.init()
    cluster.start()
    yield cluster.url()
    cluster.stop("immediate")


def test_tables_are_rebuilt(hg: headgate.Headgate, db: Db, url: str, reading: Callable[[], Reading]) -> None:
    rebuild(hg, db, url, reading, seed=1, rounds=2, large=3000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
def test_tables_are_rebuilt_after_a_long_time(
    seed: int, hg: headgate.Headgate, db: Db, url: str, reading: Callable[[], Reading]
) -> None:
    rebuild(hg, db, url, reading, seed, rounds=20, large=200_000)
