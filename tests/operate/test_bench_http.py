"""`headgate bench http` on a small scale."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from headgate import cli
from headgate.bench.http import load, wire
from headgate.bench.http.measure import BENCHMARKS
from headgate.bench.results import Result, table
from headgate.postgres.cluster import Cluster
from support.servers import data, replica


@pytest.fixture(scope="module")
def everything(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    report = tmp_path_factory.mktemp("report")
    done = subprocess.run(
        [sys.executable, "-m", "headgate.cli", "bench", "http", "--quick", "--scale", "0.02", "--json", "--report",
         report, "--database", cluster.url()],
        env=os.environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), report


def test_every_benchmark_gives_figures(everything: tuple[dict, Path]) -> None:
    run, _ = everything
    assert {r["name"] for r in run["results"]} == set(BENCHMARKS)
    assert all(r["headgate"] > 0 for r in run["results"] if r["name"] != "wake")
    assert run["versions"].keys() >= {"headgate", "postgresql", "uvicorn"}
    judged = {(r["name"], r["params"].get("figure")): r for r in run["results"] if r["target"] is not None}
    assert all(isinstance(r["ok"], bool) for r in judged.values())
    assert judged["traffic", "published"]["target"] == 5000
    assert judged["single", None]["target"] == 5
    assert judged["polls", "memory"]["ok"] is True
    assert 1 <= judged["polls", "connections"]["headgate"] <= 10


def test_the_report(everything: tuple[dict, Path]) -> None:
    _, report = everything
    page = (report / "README.md").read_text()
    for title in ("## Traffic", "## Processes", "## Single sends", "## Beside the SDK", "## Waking", "## Waiting"):
        assert title in page
    for plot in ("traffic.png", "single.png", "wake.png"):
        assert f"({plot})" in page
        assert (report / plot).read_bytes().startswith(b"\x89PNG")


def test_nothing_stays_on_the_server(everything: tuple[dict, Path], cluster: Cluster) -> None:
    with psycopg.connect(cluster.url()) as connection:
        assert connection.execute("select datname from pg_database where datname ~ '_bench_'").fetchall() == []


def test_http_is_measured_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "http", "publish"]) == 2
    assert "by themselves" in capsys.readouterr().err


def test_values_that_must_be_reached() -> None:
    low = Result("traffic", {}, "msg/s", 4999.9, target=5000, target_is="value at least")
    assert low.ok is False
    assert table([low]).splitlines()[1].endswith("≥ 5000 msg/s  below")
    assert Result("traffic", {}, "msg/s", 5000, target=5000, target_is="value at least").ok is True


def test_what_the_clients_count_is_in_the_stream(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path) as server, server.client() as admin:
        data(admin.post("/api/streams", json={"name": "s"}))
        data(admin.post("/api/streams/s/consumers", json={"name": "c"}))
        found = load.perform(
            load.Load("traffic", server.url, server.token, "s", 0.4, batch=10, publishers=3, receivers=2,
                      consumers=("c",))
        )  # fmt: skip
        messages = data(admin.get("/api/streams/s"))["messages"]
        delivered = data(admin.get("/api/streams/s/consumers/c"))["delivered"]
        assert 0 < found.published * 0.4 <= messages
        assert 0 < found.delivered[0] * 0.4 <= delivered
        with pytest.raises(wire.CallFailed, match="404"):
            asyncio.run(wire.call(server.url, wire.request(server.token, "GET", "/nothing")))
