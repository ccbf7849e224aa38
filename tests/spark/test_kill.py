"""kill -9: an archive and a replay have every message once, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import headgate

from .kills import run_and_kill
from .lakes import Row, digest, fill, go, in_pages, messages, rows


def archive(path: Path, rows_per_batch: int) -> str:
    return (
        f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{path / "t"}"\nrows_per_batch = {rows_per_batch}\n'
        f'checkpoint = "{path / "state-lake"}"'
    )


def replay(path: Path, rows_per_batch: int) -> str:
    return (
        f'kind = "replay"\nname = "back"\nsource = "{path / "t"}"\nstream = "again"\n'
        f'rows_per_batch = {rows_per_batch}\ncheckpoint = "{path / "state-back"}"'
    )


def in_lake(path: Path) -> Iterator[Row]:
    """What the table has, in the order of seq."""
    table = pa.table(DeltaTable(str(path / "t")).to_pyarrow_table(columns=["seq", "key", "data", "headers"]))
    for batch in table.sort_by("seq").to_batches(50_000):
        yield from ((r["key"], r["data"], r["headers"]) for r in batch.to_pylist())


def test_an_archive_that_is_killed(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    hg.stream("orders", create=True, lanes=4)
    fill(hg, 1, 4000)
    file = tmp_path / "lake.toml"
    file.write_text(archive(tmp_path, 100))
    said = run_and_kill(file, hg.url, after=2, delay=0.15)
    assert f"{4000} rows" not in said
    assert 200 <= len(rows(tmp_path / "t", ["seq"])) < 4000
    go(hg, spark, tmp_path, archive(tmp_path, 4000))
    assert list(in_lake(tmp_path)) == messages(hg, "orders")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_million_messages_and_many_kills(hg: headgate.Headgate, tmp_path: Path, seed: int) -> None:
    hg.stream("orders", create=True, lanes=8)
    hg.stream("again", create=True, lanes=8)
    for first in range(1, 1_000_000, 10_000):
        fill(hg, first, first + 9_999)
    expected = digest(in_pages(hg, "orders"))
    assert expected[0] == 1_000_000
    points = random.Random(seed)
    for name, text in (("lake", archive(tmp_path, 20_000)), ("back", replay(tmp_path, 20_000))):
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        for _ in range(6):
            said = run_and_kill(file, hg.url, after=points.randint(0, 4), delay=points.random())
            assert ": 1000000 rows" not in said  # it was killed before it was done
        run_and_kill(file, hg.url, after=None)
        assert digest(in_lake(tmp_path) if name == "lake" else in_pages(hg, "again")) == expected
