"""Latest: a table that has the last message of each key, and follows the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.errors import Error
from headgate.pipeline import latest

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

    def merge(*given: Any) -> None:
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
