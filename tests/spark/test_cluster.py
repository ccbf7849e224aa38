"""A real standalone cluster on this machine: a master and two workers, and executors in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import headgate
from spark.lakes import messages
from spark.servers import free_port, servers
from spark.test_exactly_once import check, fill
from support.waiting import wait_until

LAKE_JOB = Path(__file__).with_name("lake_job.py")


class Cluster(NamedTuple):
    """A master's URL, and where workers keep what executors say."""

    url: str
    work: Path

    def executors(self) -> list[int]:
        """How many executors each application had."""
        return [len(list(app.glob("*/stderr"))) for app in sorted(self.work.glob("app-*"))]


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that two workers have joined."""
    directory = tmp_path_factory.mktemp("cluster")
    url = f"spark://127.0.0.1:{free_port()}"
    deploy = "org.apache.spark.deploy"
    with servers(directory) as start:
        port = url.rpartition(":")[2]
        log = start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        for number in (1, 2):
            start(f"worker{number}", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                  "--cores", "1", "--memory", "1g", url)  # fmt: skip
        wait_until(lambda: len(re.findall("Registering worker", log.read_text())) == 2, timeout=120)
        yield Cluster(url, directory / "work")


def test_a_copy(hg: headgate.Headgate, spark_cluster: Cluster, tmp_path: Path) -> None:
    for name in ("orders", "copy"):
        hg.stream(name, create=True, lanes=4)
    fill(hg, 5_000, 20)
    subprocess.run([sys.executable, LAKE_JOB, hg.url, tmp_path, spark_cluster.url], timeout=240, check=True)
    check(hg, 5_000)
    assert spark_cluster.executors()[-1] == 2  # one of each worker


@pytest.mark.slow
def test_an_archive_and_a_replay(hg: headgate.Headgate, spark_cluster: Cluster, tmp_path: Path) -> None:
    for name in ("orders", "copy", "again"):
        hg.stream(name, create=True, lanes=4)
    fill(hg, 5_000, 20)
    job = [sys.executable, LAKE_JOB, hg.url, tmp_path, spark_cluster.url, tmp_path / "t"]
    subprocess.run(job, timeout=240, check=True)
    check(hg, 5_000)
    assert len(messages(hg, "again")) == 5_000
    assert messages(hg, "again") == messages(hg, "orders")
    assert spark_cluster.executors()[-1] == 2
