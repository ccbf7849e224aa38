"""`headgate bench` on a small scale, and the command line around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate import cli
from headgate.bench import backlog
from headgate.bench.contenders import MESSAGE_BYTES, LaneSetup, Queue, messages, open_queue
from headgate.bench.processes import Processes, Task
from headgate.bench.results import Run, compare, table
from headgate.bench.run import BENCHMARKS
from headgate.cli import bench
from headgate.database.encoding import dump_json
from headgate.postgres.cluster import Cluster

SMALL = ["--quick", "--scale", "0.01"]


@pytest.fixture(scope="module")
def everything(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """What `headgate bench --json --report DIR` prints, and DIR."""
    report = tmp_path_factory.mktemp("report")
    done = subprocess.run(
        [sys.executable, "-m", "headgate.cli", "bench", *SMALL, "--json", "--report", report],
        env={**os.environ, "HEADGATE_DATABASE_URL": cluster.url()},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), report


def test_every_benchmark_gives_figures(everything: tuple[dict, Path]) -> None:
    run, _ = everything
    assert {r["name"] for r in run["results"]} == set(BENCHMARKS) == set(bench.BENCHMARKS)
    for result in run["results"]:
        assert result["headgate"] > 0
        assert (result["ratio"] or 0) > 0 or result["target_is"] == "value at most"
        if result["name"] in ("publish", "consume", "fanout", "latency"):
            fastest = min if result["unit"] == "ms" else max
            assert result["pgmq"] == fastest(result["pgmq_sql"], result["pgmq_client"]) > 0
    assert run["versions"].keys() >= {"headgate", "pgmq", "postgresql", "psycopg", "python"}
    assert run["machine"]["cores"] >= 1


def test_targets_are_judged(everything: tuple[dict, Path]) -> None:
    run, _ = everything
    judged = [r for r in run["results"] if r["target"] is not None]
    assert all(isinstance(r["ok"], bool) for r in judged)
    kinds = {(r["name"], r["against"]) for r in judged}
    assert kinds >= {
        ("publish", "pgmq"),
        ("publish", "copy"),
        ("consume", "pgmq"),
        ("fanout", "pgmq"),
        ("latency", "pgmq"),
        ("sql", "pgmq"),
    }
    assert kinds >= {("backlog", "baseline"), ("pinned", "baseline")}
    assert kinds >= {("channels", "baseline"), ("idle", "baseline"), ("active", "baseline"), ("keys", "pgmq")}
    assert {r["params"]["look"] for r in judged if r["name"] == "looking"} >= {"peek", "message_life", "consumer.info"}
    assert len([r for r in judged if r["name"] == "streams"]) == 4


def test_the_report_has_tables_and_plots_and_names_no_machine(everything: tuple[dict, Path]) -> None:
    _, report = everything
    page = (report / "README.md").read_text()
    assert "## Publishing" in page
    assert "## Pinned snapshot" in page
    assert "## Fair channels" in page
    assert "## Lanes by key" in page
    for plot in ("publish.png", "consume.png", "latency.png"):
        assert f"({plot})" in page
        assert (report / plot).read_bytes().startswith(b"\x89PNG")
    assert os.uname().nodename not in page
    assert "/tmp" not in page


def test_nothing_stays_on_the_server(everything: tuple[dict, Path], cluster: Cluster) -> None:
    with psycopg.connect(cluster.url()) as connection:
        assert connection.execute("select datname from pg_database where datname ~ '_bench_'").fetchall() == []


def test_some_benchmarks_of_headgate_alone(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "fanout", *SMALL, "--only-headgate", "--check", "--database", cluster.url()]
    assert cli.main(args) == 0  # nothing to compare with, so nothing is below its target
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].startswith("fanout")
    assert "fanout:" in shown.err


def test_an_unknown_benchmark_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "nonsense"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "nonsense" in shown.err


def test_messages_are_as_long_as_said() -> None:
    assert {len(dump_json(m)) for m in messages(1000)} == {MESSAGE_BYTES}


def test_a_result_below_its_target_is_marked() -> None:
    found = {"headgate": 100.0, "pgmq_sql": 80.0, "pgmq_client": 60.0}
    below = compare("publish", {"batch": 1}, found, unit="msg/s", against="pgmq", target=1.8)
    assert (below.pgmq, below.ratio, below.ok) == (80.0, 1.25, False)
    fast = compare("latency", {}, {"headgate": 4.0}, unit="ms", against="pgmq", target=5, target_is="value at most")
    assert fast.ok is True
    assert Run({}, {}, [below, fast]).below == [below]
    assert table([below]).splitlines()[1].split()[-3:] == ["below", "1.67", "x"]
    slow = compare("active", {}, {"headgate": 9.0, "baseline": 2.0}, unit="ms", against="baseline", target=4,
                   target_is="ratio at most")  # fmt: skip
    assert (slow.ratio, slow.ok) == (4.5, False)
    assert table([slow]).splitlines()[1].endswith("4.50 x baseline  ≤ 4 x baseline  above")


def test_a_backlog_is_spread_over_the_named_lanes(database_url: str) -> None:
    queue = Queue("headgate", database_url, "jobs", lanes=LaneSetup("channel", 7, max_concurrency=5))
    backlog.create(queue)
    assert backlog.fill(queue, 10) == 10
    assert backlog.fill(queue, 11, start=10) == 11
    with psycopg.connect(database_url) as db:
        spread = db.execute("select count(*) from headgate.message_1 group by channel").fetchall()
        assert spread == [(3,)] * 7
        assert db.execute("select max_concurrency from headgate.consumer").fetchone() == (5,)
    backlog.drop(queue)


def test_what_was_received_of_many_channels_is_acked_with_the_next_receive(database_url: str) -> None:
    """As whole deliveries, of which each channel has its own."""
    queue = Queue("headgate", database_url, "jobs", lanes=LaneSetup("channel", 40))
    backlog.create(queue)
    backlog.fill(queue, 120)
    contender = open_queue(queue)
    with psycopg.connect(database_url, autocommit=True) as db:
        in_flight = "select count(*), count(distinct lane) from headgate.delivery"
        first = contender.receive(40, wait=5)
        assert db.execute(in_flight).fetchone() == (20, 20)  # two or three messages of each
        second = contender.receive(40)
        assert db.execute(in_flight).fetchone() == (20, 20)
        contender.settle()
        assert db.execute(in_flight).fetchone() == (0, 0)
        assert len({*first, *second}) == 80
        assert db.execute("select parked from headgate.consumers").fetchone() == (0,)
    contender.close()


def test_an_error_in_a_worker_process_ends_the_run(cluster: Cluster) -> None:
    with Processes() as processes, pytest.raises(headgate.Error, match="a worker process failed"):
        processes.run([Task(Queue("pgmq_sql", cluster.url(), "missing"), "publish", 1, 0.1)])


def test_the_death_of_a_worker_process_ends_the_run(cluster: Cluster) -> None:
    with Processes() as processes:
        processes._start(1)
        processes._workers[0][0].kill()
        with pytest.raises(headgate.Error, match="died"):
            processes.run([Task(Queue("pgmq_sql", cluster.url(), "missing"), "publish", 1, 0.1)])


def test_migrate_prints_the_version(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute("create database test_cli")
    assert cli.main(["migrate", "--database", cluster.url("test_cli")]) == 0
    version = int(capsys.readouterr().out)
    assert cli.main(["migrate", "--json", "--database", cluster.url("test_cli")]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": version}


def test_an_error_is_told_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", "--database", "postgresql://nobody@127.0.0.1:1/none"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "\nhint: " in shown.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_runs_until_it_is_told_to_stop(database_url: str, number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "HEADGATE_DATABASE_URL": database_url, "HEADGATE_EMBEDDED_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "up", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    ) as up:
        try:
            assert up.stdout is not None
            assert up.stdout.readline().strip() == database_url
            up.send_signal(number)
            assert up.wait(20) == 0
        finally:
            up.kill()
