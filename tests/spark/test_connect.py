"""A real Spark Connect server on this machine, and clients of it in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import headgate
from headgate.errors import Error, InvalidArgument
from headgate.pipeline import session
from support.calls import Db
from support.storage import end_segment, maintain
from support.waiting import wait_until

from .kills import run_pipeline
from .lakes import fill, messages, rows
from .servers import free_port, servers

JOB = Path(__file__).with_name("connect_job.py")
PASSWORD = "not-to-be-seen"


class Server(NamedTuple):
    """A Spark Connect server."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two cores. It knows no database, and works in another directory than its clients."""
    port = free_port()
    with servers(tmp_path_factory.mktemp("connect")) as start:
        log = start(
            "server", "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]",
            "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
            "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false",
            "--driver-java-options", "-XX:TieredStopAtLevel=1",  # it does not live long enough for better code
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        )  # fmt: skip
        wait_until(lambda: "Spark Connect server started" in log.read_text(), timeout=120)
        yield Server(f"sc://127.0.0.1:{port}", log)


@pytest.fixture
def url(database_url: str) -> str:
    """The database, with a password that nobody asks for and nobody may see."""
    return database_url.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.mark.slow
def test_what_the_stream_loses_comes_back(
    hg: headgate.Headgate, server: Server, url: str, tmp_path: Path, db: Db
) -> None:
    orders = hg.stream("orders", create=True, lanes=4, segment_rows=10_000, segment_age=0.000001)
    hg.stream("again", create=True, lanes=4)
    fill(hg, 1, 3000)
    before = messages(hg, "orders")
    archive = 'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "t"'
    said = [run_pipeline(tmp_path, url, archive, "--remote", server.url)]
    end_segment(db, "orders")
    orders.alter(retain_up_to=0.000001)
    maintain(db)
    assert messages(hg, "orders") == []
    replay = 'kind = "replay"\nname = "back"\nsource = "t"\nstream = "again"\nrows_per_batch = 2000'
    said.append(run_pipeline(tmp_path, url, replay, "--remote", server.url))
    assert messages(hg, "again") == before
    assert ["Warning" in text for text in said] == [False, False]
    assert PASSWORD not in server.log.read_text()


def test_the_source_and_other_pipelines(hg: headgate.Headgate, server: Server, url: str, tmp_path: Path) -> None:
    for name in ("orders", "large"):
        hg.stream(name, create=True, lanes=4)
    fill(hg, 1, 500)
    done = subprocess.run(
        [sys.executable, JOB, server.url, url, tmp_path], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[1:] == [str(seq) for seq in range(1, 501)]
    assert sorted(int(data) for _, data, _ in messages(hg, "large")) == list(range(101, 501))
    last = {key: data for key, data, _ in messages(hg, "orders") if key is not None}
    assert {r["key"]: r["data"] for r in rows(tmp_path / "now", ["key", "data"])} == last
    assert "Physical Plan" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr + server.log.read_text()


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ANSWER", 0.5)
    with pytest.raises(Error, match=r"no Spark Connect server answers at sc://127\.0\.0\.1:1/\n") as caught:
        session.session("x", remote="sc://127.0.0.1:1/;token=abc")
    assert caught.value.hint
    monkeypatch.setenv("SPARK_REMOTE", "spark://127.0.0.1:1/;token=abc")
    with pytest.raises(InvalidArgument, match=r"spark://127\.0\.0\.1:1/ is not the URL of a Spark Connect server"):
        session.session("x")
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(Error, match="is not installed") as caught:
        session.session("x", remote="sc://127.0.0.1:1")
    assert "headgate[spark-connect]" in (caught.value.hint or "")
