"""How far archives and tables of latest messages are, as others see it; and the files that they remove as they run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.java_gateway import ensure_callback_server_started

import headgate
from headgate.pipeline import parse, vacuum
from headgate.pipeline.run import Progress, run
from support.command_line import CommandLine
from support.waiting import wait_until

from .lakes import go, rows

WEEK = 8 * 86400 * 1000  # milliseconds, and a day more


def spec(kind: str, path: Path, *lines: str) -> str:
    return "\n".join([f'kind = "{kind}"\nname = "p"\nstream = "orders"\nto = "{path}"', *lines])


class Listener:
    """A QueryExecutionListener, as programs for Spark have them."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def onSuccess(self, name: str, query: Any, nanoseconds: int) -> None:  # noqa: N802 - Spark's name
        seen = query.observedMetrics()
        if seen.contains("headgate p"):
            self.rows.append(seen.apply("headgate p").getLong(0))

    def onFailure(self, name: str, query: Any, error: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)


@pytest.mark.parametrize("kind", ["archive", "latest"])
def test_listeners_and_jobs(hg: headgate.Headgate, spark: Any, tmp_path: Path, kind: str) -> None:
    orders = hg.stream("orders", create=True, lanes=2)
    orders.send_batch([(f"k{n}", str(n)) for n in range(25)])
    ensure_callback_server_started(spark.sparkContext._gateway)
    listener, manager = Listener(), spark._jsparkSession.listenerManager()
    manager.register(listener)
    try:
        go(hg, spark, tmp_path, spec(kind, tmp_path / kind, "rows_per_batch = 10"))
        wait_until(lambda: len(listener.rows) >= 3)
    finally:
        manager.unregister(listener)
    assert listener.rows == [10, 10, 5]
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup("headgate p")
    assert len(jobs) >= 3
    store = spark.sparkContext._jsc.sc().statusStore()
    assert "p: batch 2 of orders" in {store.job(job).description().get() for job in jobs}


def test_status(hg: headgate.Headgate, spark: Any, tmp_path: Path) -> None:
    orders = hg.stream("orders", create=True, lanes=2)
    orders.send_batch([(f"k{n}", str(n)) for n in range(25)])
    said: list[Progress] = []

    def progress() -> dict[str, Any]:
        found = hg.run("select progress::text from headgate.pipeline_status('p')", ())
        return json.loads(found[0][0]) if found else {}

    text = spec("archive", tmp_path / "t", "rows_per_batch = 10", 'run = "every 2 hours"')
    waits = lambda: progress().get("next_run") is not None  # noqa: E731
    run(parse(text), hg, spark, say=said.append, directory=tmp_path, stopping=waits)
    assert [(p.batch, p.rows, p.lag, p.files) for p in said] == [(0, 10, 15, 1), (1, 10, 5, 2), (2, 5, 0, 3)]
    assert all(p.behind is not None and p.behind > 0 for p in said[:2])
    assert said[2].behind == 0
    assert all(p.committed_at is not None for p in said)
    seen = progress()
    assert (seen["batch"], seen["total"], seen["files"], seen["next_run"]) == (2, 25, 3, None)  # it was stopped


def test_next_run_is_shown(run: CommandLine, hg: headgate.Headgate) -> None:
    said = {
        "batch": 7,
        "total": 10,
        "rate": 3.2,
        "lag": 5,
        "behind": 12.4,
        "files": 3,
        "committed_at": "then",
        "next_run": "soon",
    }
    hg.run("select headgate.note_pipeline('p', 'archive', 'running', 'x', '{}', %s)", (json.dumps(said),))
    shown = run("pipeline", "status").out
    assert re.search(r"running +7 +10 +3 +5 +12 s +3 +then +soon", shown)
    assert run("pipeline", "status", "p", "--json").json[0]["progress"] == said


def aged(path: Path) -> None:
    """As if what the table lost up to now had been lost a week ago."""
    for file in (path / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for action in lines:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= WEEK
        file.write_text("\n".join(json.dumps(line) for line in lines))


def test_files_are_removed_while_it_runs(
    hg: headgate.Headgate, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old ones, and no others: readers of newer versions have their time."""
    orders = hg.stream("orders", create=True, lanes=2)
    path = tmp_path / "t"
    for n in range(3):
        orders.send(str(n), key="a")
        go(hg, spark, tmp_path, spec("latest", path, "buckets = 1"))
    aged(path)
    monkeypatch.setattr(vacuum, "EVERY", 0)
    said: list[Progress] = []
    left: list[int] = []

    def say(progress: Progress) -> None:
        said.append(progress)
        left.append(len(list(path.rglob("*.parquet"))))
        if len(said) < 3:
            orders.send("more", key="a")

    orders.send("3", key="a")
    text = spec("latest", path, "buckets = 1", 'run = "continuous"')
    run(parse(text), hg, spark, say=say, directory=tmp_path, stopping=lambda: len(said) >= 3)
    assert (said[0].note, [p.note for p in said[1:]]) == ("1 keys, 2 old files removed", ["1 keys"] * 2)
    assert left == [2, 3, 4]  # what the last batches replaced is there for a week
    before = DeltaTable(str(path), version=DeltaTable(str(path)).version() - 1)
    assert before.to_pyarrow_table().num_rows == 1
    assert [r["data"] for r in rows(path, ["data"])] == ["more"]
    assert go(hg, spark, tmp_path, spec("latest", path)) == []  # how far it is, is found behind the commits of a vacuum
