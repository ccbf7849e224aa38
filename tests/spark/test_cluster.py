"""A real standalone cluster on this machine: a master and two workers, and executors in processes of their own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from conftest import wait_until

import headgate
from headgate.pipeline.session import prepare_java
from spark.test_exactly_once import Job, check, fill

HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster that two workers have joined."""
    prepare_java()
    port = free_port()
    environment = {
        **os.environ, "SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }  # fmt: skip
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\n"
        "appender.out.type = Console\nappender.out.name = out\nappender.out.target = SYSTEM_ERR\n"
        "appender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %m%n\n"
    )
    log = tmp_path / "master.log"
    url = f"spark://127.0.0.1:{port}"
    started = []

    def start(name: str, *arguments: str) -> None:
        with (tmp_path / f"{name}.log").open("w") as out:
            started.append(
                subprocess.Popen([HOME / "bin" / "spark-class", *arguments], env=environment, stdout=out, stderr=out)
            )

    deploy = "org.apache.spark.deploy"
    try:
        start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for number in (1, 2):
            start(f"worker{number}", f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                  "--cores", "1", "--memory", "1g", url)  # fmt: skip
        wait_until(lambda: len(re.findall("Registering worker", log.read_text())) == 2, timeout=120)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def test_a_stream_is_copied(hg: headgate.Headgate, master: str, tmp_path: Path) -> None:
    for name in ("orders", "copy"):
        hg.stream(name, create=True, lanes=4)
    fill(hg, 5_000, 20)
    job = Job(hg, tmp_path / "c", 3_000, master)
    try:
        lines = [job.next_line()]
        while lines[-1] not in ("done", "ended"):
            lines.append(job.next_line())
    finally:
        job.kill()
    assert lines[-1] == "done"
    check(hg, 5_000)
    # both workers ran executors
    assert len(list((tmp_path / "work").glob("app-*/*/stderr"))) == 2
