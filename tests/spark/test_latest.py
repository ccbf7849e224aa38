"""Latest: a table that has the last message of each key, and follows the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql.classic.dataframe import DataFrame

import headgate
from headgate.errors import Error
from headgate.lake.secrets import Secret
from headgate.lake.storage import Location
from headgate.lake.table import LakeTable, files_of
from headgate.pipeline import parse
from headgate.pipeline.kinds import latest
from headgate.pipeline.run import Job

from .lakes import go, rows


def spec(path: Path, *lines: str) -> str:
    return "\n".join([f'kind = "latest"\nname = "now"\nstream = "orders"\nto = "{path}"', *lines])


def table(path: Path, *columns: str) -> dict[str, Any]:
    found = rows(path, ["key", *columns])
    assert len({r["key"] for r in found}) == len(found)
    return {r["key"]: r[columns[0]] if len(columns) == 1 else tuple(r[c] for c in columns) for r in found}


def test_it_follows_the_stream(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    orders = hg.stream("orders", create=True, lanes=4)
    path = tmp_path / "t"
    orders.send_batch([("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("d", "1")])
    orders.send("nobody's")
    go(hg, spark, tmp_path, spec(path))
    assert table(path, "data", "seq") == {"a": ("2", 3), "b": ("1", 2), "c": ("1", 4), "d": ("1", 5)}
    orders.send_batch(
        [("a", "3"), ("b", "null"), ("c", ""), ("e", "1"), ("f", "1"), ("f", "null"), ("d", "null"), ("d", "4")]
    )
    go(hg, spark, tmp_path, spec(path, "rows_per_batch = 3"))
    assert table(path, "data") == {"a": "3", "d": "4", "e": "1"}
    assert go(hg, spark, tmp_path, spec(path)) == []


def test_a_crash_after_the_commit_changes_nothing(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = hg.stream("orders", create=True, lanes=4)
    orders.send_batch([("a", '{"n": 1}'), ("b", '{"n": 2}'), ("a", '{"n": 3}')])
    path = tmp_path / "t"
    real = latest.merge

    def merge(*given: Any) -> tuple[int, int]:
        real(*given)
        raise RuntimeError("power cut")

    text = spec(path, "rows_per_batch = 2", 'schema = "n int"')
    with monkeypatch.context() as patch:
        patch.setattr(latest, "merge", merge)
        with pytest.raises(Error, match="power cut"):
            go(hg, spark, tmp_path, text)
    assert table(path, "data") == {"a": {"n": 1}, "b": {"n": 2}}
    assert [p.rows for p in go(hg, spark, tmp_path, text)] == [1]
    assert table(path, "data", "seq") == {"a": ({"n": 3}, 3), "b": ({"n": 2}, 2)}


def test_keys_in_many_files_and_late_ones(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """Files that are large stay where no key of theirs is changed; a message that committed late does not win."""
    orders = hg.stream("orders", create=True, lanes=1)
    path = tmp_path / "t"
    expected: dict[str, str] = {}

    def batch(numbers: Iterable[int], data: str) -> int:
        """Sends and merges; returns how many files stayed."""
        sent = {f"k{n}": data for n in numbers}
        expected.update(sent)
        orders.send_batch(list(sent.items()))
        before = set(DeltaTable(str(path)).file_uris()) if path.exists() else set()
        go(hg, spark, tmp_path, spec(path, "buckets = 3"))
        assert table(path, "data") == expected
        return len(before & set(DeltaTable(str(path)).file_uris()))

    # in tasks, which are other processes: what is large is told by what the table says of files
    monkeypatch.setattr(latest, "files_of", lambda t: [msgspec.structs.replace(f, size=1 << 40) for f in files_of(t)])
    batch(range(30), "a")
    assert len(DeltaTable(str(path)).file_uris()) == 3
    assert batch(range(30, 60), "b") == 3
    assert batch([1], "c") == 5
    batch(range(0, 60, 2), "d")
    with psycopg.connect(database_url) as late:
        late.execute("select headgate.send('orders', 'late', 'k5'), headgate.send('orders', 'late', 'new')")
        batch([5, 7], "e")
        late.commit()
    expected["new"] = "late"
    go(hg, spark, tmp_path, spec(path))
    assert table(path, "data") == expected
    with pytest.raises(Error, match="has 3 buckets, not 4"):
        go(hg, spark, tmp_path, spec(path, "buckets = 4"))


def test_a_table_that_was_made_before_there_were_buckets(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    orders = hg.stream("orders", create=True)
    old = latest.columns(parse(spec(path)), Job(spark, hg, Secret(hg.url), tmp_path, lambda _: None))  # type: ignore[arg-type]
    LakeTable(Location(str(path)), old, stream="orders", pipeline="now").open()
    for data in ("1", "2"):
        orders.send_batch([("a", data), (f"b{data}", "1")])
        go(hg, spark, tmp_path, spec(path))
    assert table(path, "data") == {"a": "2", "b1": "1", "b2": "1"}
    assert len(DeltaTable(str(path)).file_uris()) == 1


@pytest.mark.parametrize("kind", ["archive", "latest"])
def test_rows_do_not_pass_through_the_driver(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It sees counts and names of files, however large the batch is."""
    seen: list[int] = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = real(*given, **named)
            seen.append(len(found))
            return found

        return call

    monkeypatch.setattr(DataFrame, "collect", counted(DataFrame.collect))
    monkeypatch.setattr(DataFrame, "toArrow", counted(DataFrame.toArrow))
    orders = hg.stream("orders", create=True, lanes=4)
    for size in (30, 3000):
        orders.send_batch([(f"k{n}", "x" * 100) for n in range(size)])
        (done,) = go(hg, spark, tmp_path, spec(tmp_path / "t").replace('"latest"', f'"{kind}"'))
        assert done.rows == size
    assert max(seen) <= 4
