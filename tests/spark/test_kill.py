"""kill -9: an archive and a replay have every message once, in order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headgate

from .kills import run_and_kill
from .lakes import fill, go, messages, rows


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


def check_lake(hg: headgate.Headgate, path: Path, count: int) -> None:
    found = sorted(rows(path / "t", ["seq", "key", "data", "headers"]), key=lambda r: r["seq"])
    assert len(found) == count
    assert [(r["key"], r["data"], r["headers"]) for r in found] == messages(hg, "orders")


def test_an_archive_that_is_killed(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    hg.stream("orders", create=True, lanes=4)
    fill(hg, 1, 4000)
    file = tmp_path / "lake.toml"
    file.write_text(archive(tmp_path, 100))
    said = run_and_kill(file, hg.url, after=2, delay=0.15)
    assert f"{4000} rows" not in said
    assert 200 <= len(rows(tmp_path / "t", ["seq"])) < 4000
    go(hg, spark, tmp_path, archive(tmp_path, 4000))
    check_lake(hg, tmp_path, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_archive_and_replay_killed_many_times(hg: headgate.Headgate, spark: Any, tmp_path: Path, seed: int) -> None:
    count = 200_000
    hg.stream("orders", create=True, lanes=8)
    hg.stream("again", create=True, lanes=8)
    for first in range(1, count, 10_000):
        fill(hg, first, first + 9_999)
    points = random.Random(seed)
    for name, text in (("lake", archive(tmp_path, 5_000)), ("back", replay(tmp_path, 5_000))):
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        for _ in range(6):
            run_and_kill(file, hg.url, after=points.randint(0, 4), delay=points.random())
        run_and_kill(file, hg.url, after=None)
        if name == "lake":
            check_lake(hg, tmp_path, count)
    assert messages(hg, "again") == messages(hg, "orders")
