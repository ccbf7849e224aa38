"""The server's log: JSON lines, the access log, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from headgate.postgres.cluster import Cluster
from headgate.server.operate.logs import Json, Text, hide_secrets
from support.databases import new_database
from support.servers import data, error
from support.traces import Spans

PASSWORD = "s3cr3t-p4ss"


def start(url: str, home: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "up", "--port", "0", "--database", url, *options],
        env={**os.environ, "HEADGATE_EMBEDDED_DIR": str(home), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def with_password(url: str) -> str:
    """The database's URL with a password that nobody asks for."""
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}password={PASSWORD}"


def test_json_lines_without_secrets(cluster: Cluster, tmp_path: Path) -> None:
    with new_database(cluster) as url:
        up = start(
            with_password(url), tmp_path, "--log-format", "json", "--access-log", "--json", HEADGATE_LOG_LEVEL="debug"
        )
        try:
            assert up.stdout is not None
            said = json.loads("".join(iter(up.stdout.readline, "}\n")) + "}")
            token = (tmp_path / "token").read_text().strip()
            authorization = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=said["http"], headers=authorization) as http:
                data(http.post("/api/streams", json={"name": "orders"}))
                error(http.get("/api/streams/none"), 404)
                made = data(http.post("/api/tokens", json={"name": "t", "scopes": ["produce"]}))
                error(http.get("/api/streams", headers={"Authorization": f"Bearer {made['token']}x"}), 401)
                error(http.get(f"/api/{made['token']}"), 404)
            with new_database_gone(cluster, url):
                httpx.get(said["http"] + "/api/streams", headers=authorization)
            up.send_signal(signal.SIGTERM)
            out, err = up.communicate(timeout=40)
        finally:
            up.kill()
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    access = [line["fields"] for line in lines if line["logger"] == "headgate.access"]
    first = access[0]
    assert (first["method"], first["route"], first["status"]) == ("POST", "/api/streams", 201)
    assert first["token"] == token.partition(".")[0]
    assert first["ms"] > 0
    assert {a["route"] for a in access} == {"/api/streams", "/api/streams/{stream}", "/api/tokens", "-"}
    assert {line["level"] for line in lines if line["logger"] == "headgate.access"} == {"info"}
    everything = json.dumps(said) + out + err
    for secret in (PASSWORD, token.partition(".")[2], made["token"].partition(".")[2]):
        assert secret not in everything


class new_database_gone:  # noqa: N801 - read as a statement
    """Ends the sessions of a database, so that the server has errors to log."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self._cluster = cluster
        self._name = re.split(r"[/?]", url.partition("://")[2])[1]

    def __enter__(self) -> None:
        import psycopg

        with psycopg.connect(self._cluster.url(), autocommit=True) as db:
            db.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self._name,))

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_database_that_cannot_be_reached(tmp_path: Path, log_format: str) -> None:
    """It is waited for, and the log says so."""
    url = f"postgresql://app:{PASSWORD}@127.0.0.1:1/none?connect_timeout=2"
    up = start(url, tmp_path, HEADGATE_LOG_FORMAT=log_format, HEADGATE_LOG_LEVEL="debug")
    lines = []
    assert up.stderr is not None
    while "and waited for" not in "".join(lines):
        lines.append(up.stderr.readline())
        assert lines[-1], lines
    up.terminate()
    out, err = up.communicate(timeout=60)
    assert up.returncode == 0
    assert PASSWORD not in out + "".join(lines) + err
    if log_format == "json":
        assert json.loads(lines[-1])["level"] == "error"


def test_a_url_that_cannot_be_read(tmp_path: Path) -> None:
    up = start(f"postgresql://app:{PASSWORD}@@:x/none", tmp_path, "--log-format", "json", "--log-level", "debug")
    out, err = up.communicate(timeout=60)
    assert up.returncode == 1
    assert PASSWORD not in out + err


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://app:{PASSWORD}@host/db",
        f"cannot connect to postgres://app:{PASSWORD}@x@host:5432/db now",
        f"postgresql://host/db?user=a&password={PASSWORD}&x=1",
        f"host=x password={PASSWORD} dbname=y",
        f"host=x password = '{PASSWORD} it\\'s' dbname=y",
        f"hg_0123456789abcdef.{PASSWORD}{PASSWORD}",
        f"Authorization: Bearer hg_0123456789abcdef.{PASSWORD}{PASSWORD}",
        f"authorization: bearer {PASSWORD}",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    assert PASSWORD not in hide_secrets(text)
    assert "***" in hide_secrets(text)
    assert hide_secrets("an ordinary line of postgresql, password authentication failed") == (
        "an ordinary line of postgresql, password authentication failed"
    )


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, io.StringIO, logging.Handler]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("test.logs")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream, handler
    logger.removeHandler(handler)


def test_fields_traces_and_exceptions(logged: tuple[logging.Logger, io.StringIO, logging.Handler]) -> None:
    logger, stream, handler = logged
    handler.setFormatter(Json())
    with Spans(), trace.get_tracer("test").start_as_current_span("here") as span:
        try:
            raise ValueError(f"postgresql://a:{PASSWORD}@b/c \ud800")
        except ValueError:
            logger.exception("it %s", "failed", extra={"stream": "orders", "odd": {1: {Path("x")}}, "none": None})
    [line] = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["message"] == "it failed"
    assert found["fields"] == {"stream": "orders", "odd": {"1": ["x"]}}
    assert found["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert "ValueError" in found["exception"]
    assert PASSWORD not in line

    stream.truncate(0)
    handler.setFormatter(Text())
    logger.warning("slow", extra={"ms": 5})
    assert re.search(r"\d\d:\d\d\.\d{3} warning test\.logs: slow ms=5\n", stream.getvalue())
