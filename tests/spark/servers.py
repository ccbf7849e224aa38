"""Spark's own servers on this machine, started from PySpark's wheel and ended by their ids."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark

from headgate.pipeline.session import prepare_java

HOME = Path(pyspark.__file__).parent
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %m%n
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[Callable[..., Path]]:
    """Gives what starts a server, by a name and what spark-class is told, and returns its log."""
    prepare_java()
    (directory / "conf").mkdir()
    (directory / "conf" / "log4j2.properties").write_text(LOGGING)
    environment = {
        **os.environ, "SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(directory / "conf"),
    }  # fmt: skip
    started = []

    def start(name: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        with log.open("w") as out:
            started.append(
                subprocess.Popen(
                    [HOME / "bin" / "spark-class", *arguments], cwd=directory, env=environment, stdout=out, stderr=out
                )
            )
        return log

    try:
        yield start
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
