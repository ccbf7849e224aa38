"""Archives with typed columns: declared, or found in the data; the text itself is always there."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import headgate
from headgate.errors import Error, InvalidArgument
from headgate.lake import table as lake
from headgate.pipeline.columns import Shape, column_name, wider
from support.calls import Db
from support.storage import end_segment, maintain

from .lakes import go, messages, rows


def spec(path: Path, *lines: str) -> str:
    return "\n".join([f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{path}"', *lines])


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4, segment_rows=10_000, segment_age=0.000001)


def typed(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = sorted(rows(path, ["seq", *columns]), key=lambda r: r["seq"])
    return [tuple(r[c] for c in columns) for r in found]


def kinds(path: Path) -> dict[str, str]:
    """The typed columns of a table, as Delta has them."""
    known = {"seq", "key", "data", "headers", "channel", "lane", "created_at", "tick", "date", "hour"}
    return {f.name: f.type.type for f in DeltaTable(str(path)).schema().fields if f.name not in known}


def sent(orders: headgate.Stream) -> list[str]:
    """Data that is not what one would like it to be."""
    data = [
        '{"id": 1, "total": 2.5, "at": "2026-05-01T12:00:00Z"}',
        '{"id": "x", "total": 3}',
        "text",
        "[1]",
        '{"id": 4',
    ]
    orders.send_batch([("k", d) for d in data])
    return data


def test_declared_columns(hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream) -> None:
    path, data = tmp_path / "t", sent(orders)
    go(hg, spark, tmp_path, spec(path, 'schema = "id int, total decimal(10,2), at timestamp"'))
    at = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
    assert [(i, None if t is None else float(t), a) for i, t, a in typed(path, "id", "total", "at")] == [
        (1, 2.5, at), (None, 3.0, None), (None, None, None), (None, None, None), (None, None, None)
    ]  # fmt: skip
    assert [d for (d,) in typed(path, "data")] == data
    # one more column; those that are declared no longer are null from then on
    orders.send('{"id": 7, "place": {"town": "Ulm", "zip": 7}, "key": "mine"}')
    go(hg, spark, tmp_path, spec(path, 'schema = "id int, place struct<town string>, key string"'))
    assert typed(path, "id", "total", "place", "data_key")[-1] == (7, None, {"town": "Ulm"}, "mine")
    with pytest.raises(InvalidArgument, match="has other columns: id int32") as caught:
        go(hg, spark, tmp_path, spec(path, 'schema = "id string"'))
    assert caught.value.hint
    for wrong in ("id", "id wrong", "id binary"):
        with pytest.raises(InvalidArgument, match=r"is not a schema|JSON has nothing"):
            go(hg, spark, tmp_path, spec(tmp_path / "u", f'schema = "{wrong}"'))


def test_columns_are_found_grow_and_widen(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, orders: headgate.Stream, db: Db
) -> None:
    path, expected = tmp_path / "t", list[dict[str, Any]]()

    def batch(*given: Any) -> dict[str, str]:
        expected.extend(given)
        orders.send_batch([("k", json.dumps(d)) for d in given])
        go(hg, spark, tmp_path, spec(path, "infer = true", 'schema = "fixed long"', 'partition_by = ["date"]'))
        assert [json.loads(d) for (d,) in typed(path, "data")] == expected
        return kinds(path)

    assert batch({"id": 1, "ok": True}, {"id": 2, "fixed": "x"}) == {"fixed": "long", "id": "long", "ok": "boolean"}
    first = DeltaTable(str(path)).version()
    assert batch({"id": 3, "name": "n", "fixed": 5})["name"] == "string"
    assert batch({"id": 4.5})["id"] == "double"
    assert typed(path, "id", "name", "fixed") == [(1, None, None), (2, None, None), (3, "n", 5), (4.5, None, None)]
    assert batch({"id": "five", "deep": {"a": [1]}}, "no object")["id"] == "string"
    ids = ["1", "2", "3", "4.5", "five", None]
    assert [i for (i,) in typed(path, "id")] == ids
    assert typed(path, "deep")[4] == ('{"a":[1]}',)
    assert kinds(path)["ok"] == "boolean"
    assert [f.type.type for f in DeltaTable(str(path), version=first).schema().fields if f.name == "id"] == ["long"]
    # the way back, and the seam of lake and stream
    hg.stream("again", create=True, lanes=8)
    go(hg, spark, tmp_path, f'kind = "replay"\nname = "back"\nsource = "{path}"\nstream = "again"')
    assert messages(hg, "again") == messages(hg, "orders")
    hg.stream("few", create=True)
    go(hg, spark, tmp_path, f'kind = "replay"\nname = "w"\nsource = "{path}"\nstream = "few"\nwhere = "name = \'n\'"')
    assert [json.loads(d)["id"] for _, d, _ in messages(hg, "few")] == [3]
    end_segment(db, "orders")
    go(hg, spark, tmp_path, spec(path, "infer = true", 'schema = "fixed long"', 'partition_by = ["date"]'))
    orders.alter(retain_up_to=0.000001)
    maintain(db)
    assert messages(hg, "orders") == []
    orders.alter(retain_up_to=3600)
    orders.send("last")
    both = spark.read.format("headgate").options(url=hg.url, stream="orders", history=True).load()
    assert [r.data for r in both.orderBy("seq").collect()] == [*(json.dumps(d) for d in expected), "last"]


@pytest.mark.parametrize("crash", ["extend", "rewrite", "add"])
def test_a_crash_while_the_table_grows_neither_doubles_nor_loses(
    hg: headgate.Headgate,
    spark: Any,
    tmp_path: Path,
    orders: headgate.Stream,
    monkeypatch: pytest.MonkeyPatch,
    crash: str,
) -> None:
    path = tmp_path / "t"
    orders.send_batch([("k", '{"n": 1}'), ("k", '{"n": 2}')])
    go(hg, spark, tmp_path, spec(path, "infer = true"))
    orders.send_batch([("k", '{"n": 2.5, "m": 1}')] if crash != "extend" else [("k", '{"n": 3, "m": 1}')])
    real = getattr(lake.LakeTable, crash)

    def cut(self: lake.LakeTable, *given: Any) -> None:
        if crash != "add":
            real(self, *given)
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(lake.LakeTable, crash, cut)
        with pytest.raises(Error, match="power cut"):
            go(hg, spark, tmp_path, spec(path, "infer = true"))
    assert typed(path, "n") == [(1,), (2,)]
    assert [p.rows for p in go(hg, spark, tmp_path, spec(path, "infer = true"))] == [1]
    assert typed(path, "n", "m") == [(1, None), (2, None), (3 if crash == "extend" else 2.5, 1)]


def test_json_is_not_read_where_there_are_no_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"data": ["{"]})
    assert next(Shape().filled(iter([batch]), {})) is batch


def test_kinds_and_names() -> None:
    assert [wider("long", "double"), wider("long", "boolean"), wider(None, "long"), wider("long", None)] == [
        "double", "string", "long", "long"
    ]  # fmt: skip
    assert [column_name(n) for n in ("id", "Key", "a b.c", "")] == ["id", "data_Key", "a_b_c", "_"]
    many = Shape(infer=True).grown([{f"f{n}": "long" for n in range(1000)}])
    assert len(many.found) == 500
    assert many.grown([{"F1": "double", "new": "long"}]).found["f1"] == "double"
