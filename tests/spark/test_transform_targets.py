"""Transforms into a table of PostgreSQL and into a Delta table: each batch once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import Db, column

import headgate
from headgate.errors import Error

from .lakes import go, rows

SQL = (
    "select key, data.n, cast(data.n as decimal(10, 2)) / 3 as third, created_at, data.n > 2 as large, data.day "
    "from messages"
)


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    stream = hg.stream("orders", create=True, lanes=4)
    stream.send_batch([(f"k{n % 3}", {"n": n, "day": f"2026-03-0{n + 1}"}) for n in range(6)])
    return stream


def spec(target: str, *lines: str, sql: str = SQL) -> str:
    head = 'kind = "transform"\nname = "t"\nstream = "orders"\nschema = "n long, day date"\n'
    return "\n".join([head, f'sql = "{sql}"', target, *lines])


def repeat(directory: Path) -> None:
    """Takes away what Spark knows of the last batch: it crashed after our commit and before its own."""
    commits = directory / "state-t" / "checkpoint" / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    for path in (last, commits / f".{last.name}.crc"):
        path.unlink(missing_ok=True)


def test_into_a_table(hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db) -> None:
    db.execute("create schema sales")
    text = spec('to_table = "sales.numbers"')
    go(hg, spark, tmp_path, text)
    found = "select key, n, third::text, large, day::text from sales.numbers order by n"
    rows = db.execute(found).fetchall()
    assert rows[:2] == [("k0", 0, "0.000000", False, "2026-03-01"), ("k1", 1, "0.333333", False, "2026-03-02")]
    assert len(rows) == 6
    repeat(tmp_path)
    orders.send({"n": 6, "day": "2026-03-07"}, key="k0")
    go(hg, spark, tmp_path, text)
    assert column(db, "select n from sales.numbers order by n") == list(range(7))
    assert column(db, "select relname from pg_class where relname ~ '^headgate_[0-9a-f]+_'") == []


def test_into_a_table_by_key(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    db.execute("create table latest (key varchar primary key, n int, note text default 'x')")
    text = spec('to_table = "latest"', 'table_keys = ["key"]', sql="select key, data.n from messages")
    go(hg, spark, tmp_path, text)
    query = "select key, n, note from latest order by key"
    assert db.execute(query).fetchall() == [("k0", 3, "x"), ("k1", 4, "x"), ("k2", 5, "x")]
    orders.send({"n": 9}, key="k1")
    go(hg, spark, tmp_path, text)
    assert db.execute(query).fetchall() == [("k0", 3, "x"), ("k1", 9, "x"), ("k2", 5, "x")]


def test_into_a_lake(hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream) -> None:
    path = tmp_path / "lake"
    text = spec(f'to_lake = "{path}"', sql="select key, data.n, struct(data.n as a) as s from messages")
    go(hg, spark, tmp_path, text)
    repeat(tmp_path)
    orders.send({"n": 6}, key="k0")
    go(hg, spark, tmp_path, text)
    found = sorted(rows(path, ["n", "key", "s"]), key=lambda r: r["n"])
    assert [r["n"] for r in found] == list(range(7))
    assert found[5] == {"n": 5, "key": "k2", "s": {"a": 5}}


def test_what_does_not_fit_is_said(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    db.execute("create table narrow (n int)")
    for text, problem in (
        (spec('to_table = "narrow"', sql="select data.n, key from messages"), "has no column key"),
        (spec('to_table = "a.b.c"'), "is not the name of a table"),
        (spec('to_table = "x"', sql="select data from messages"), "which a table cannot hold"),
        (spec('to_table = "x"', 'table_keys = ["color"]'), "no column color"),
        (spec('to_table = "nowhere.x"'), "nowhere"),
    ):
        with pytest.raises(Error, match=problem) as caught:
            go(hg, spark, tmp_path, text)
        assert caught.value.hint
