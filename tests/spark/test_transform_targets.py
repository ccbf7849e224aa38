"""Transforms into a table of PostgreSQL and into a Delta table: each batch once."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from deltalake import DeltaTable

import headgate
from headgate.errors import Error
from support.calls import Db, column

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


TYPES = """
select created_at, cast(created_at as timestamp_ntz) as ntz, cast('2026-01-02' as date) as day, binary('ab') as raw,
  cast(1 as tinyint) as small, float(1.5) as half, cast(1 as decimal(38, 9)) as price, map('a', created_at) as named,
  array(created_at, null) as times, array(struct(1 as a, map('k', array(2.5)) as m)) as deep, key as seq,
  struct(created_at, struct(cast('x' as varchar(3)) as inner) as s) as nested, cast(null as string) as nothing
from messages"""


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_every_type_that_a_lake_can_hold(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, zone: str
) -> None:
    path = tmp_path / "lake"
    text = spec(f'to_lake = "{path}"', sql=TYPES.replace("\n", " "))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        go(hg, spark, tmp_path, text)
        orders.send({"n": 6}, key="k0")
        go(hg, spark, tmp_path, text)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    names = [f.name for f in DeltaTable(str(path)).schema().fields]
    found = rows(path, names)
    assert len(found) == 7
    sent = sorted(at for (at,) in hg.run("select created_at from headgate.log_orders", ()))
    assert sorted(r["created_at"] for r in found) == sent
    row = found[0]
    at = row["created_at"]
    assert row["ntz"] == at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert (row["raw"], row["small"], row["half"], row["price"]) == (b"ab", 1, 1.5, Decimal(1))
    assert (row["day"], row["named"], row["times"]) == (date(2026, 1, 2), [("a", at)], [at, None])
    assert row["deep"] == [{"a": 1, "m": [("k", [Decimal("2.5")])]}]
    assert row["nested"] == {"created_at": at, "s": {"inner": "x"}}
    assert row["nothing"] is None


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("select interval '1' day as i from messages", "i is interval day, which a table of the lake cannot hold"),
        ("select array(interval '1' month) as i from messages", "i is interval month"),
        ("select struct(parse_json('1') as v) as s from messages", "s.v is variant"),
        ("select null as n from messages", "n is void"),
        ("select make_interval(1) as n from messages", "n is interval"),
        ("select key, data.n as KEY from messages", "two columns KEY"),
        ("select key as `a b` from messages", 'a table cannot have a column "a b"'),
        ("select color from messages", "color"),
        ("selec key from messages", "selec"),
    ],
)
def test_what_a_lake_cannot_hold_is_said_and_nothing_is_made(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, sql: str, problem: str
) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match=problem) as caught:
        go(hg, spark, tmp_path, spec(f'to_lake = "{tmp_path / "lake"}"', sql=sql))
    assert caught.value.hint
    assert "run it again" not in caught.value.hint
    assert list(tmp_path.iterdir()) == []


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
