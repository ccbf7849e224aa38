"""A database that goes away and comes back: killed, stopped, failed over, or not there yet. The server goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from headgate.database import schema
from headgate.errors import ConnectionFailed, EmbeddedServerError
from headgate.postgres.cluster import Cluster
from headgate.postgres.embedded import start_or_join
from headgate.server.operate.availability import is_passing
from support.postgres import NewCluster
from support.servers import data, error, replica
from support.waiting import wait_until

BODY = {"messages": [{"data": 1}]}
BOTH = pytest.mark.parametrize("processes", ["1", "2"])


@dataclass
class Up:
    """A `headgate up` that runs."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=40)

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if text in line]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def up(directory: Path, processes: str, *options: str, log: Path | None = None) -> Iterator[Up]:
    """Starts it; at the end it is asked to stop, and must."""
    port, log = free_port(), log or directory / "up.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", "up", "--no-auth", "--port", str(port), "--processes", processes,
             *options],
            env={**os.environ, "HEADGATE_EMBEDDED_DIR": str(directory / "pg")},
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        yield Up(process, f"http://127.0.0.1:{port}", log)
        if process.poll() is None:
            process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def postmaster(directory: Path) -> int:
    return int((directory / "pg/data/postmaster.pid").read_text().splitlines()[0])


def says(up: Up, *lines: str) -> None:
    assert up.process.stdout
    for line in lines:
        assert re.match(line, up.process.stdout.readline())


@pytest.mark.alone
@BOTH
def test_a_private_postgresql_that_is_killed_comes_back(tmp_path: Path, processes: str) -> None:
    with up(tmp_path, processes) as server, server.client() as http, server.client() as another:
        says(server, "postgresql://", "http://")
        data(http.post("/api/streams", json={"name": "s"}))
        data(http.post("/api/streams/s/consumers", json={"name": "c"}))
        before = postmaster(tmp_path)
        for client in (http, another):
            data(client.post("/api/streams/s/messages", json=BODY))
        seen: set[int] = set()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: server.lines("has ended, and is started again"))
        while not {200} <= seen:
            began = time.monotonic()
            answer = http.post("/api/streams/s/messages", json=BODY)
            assert time.monotonic() - began < 5, "nobody waits for a connection that there is not"
            seen.add(answer.status_code)
            if not answer.is_success:
                assert error(answer, 503) in ("database_away", "database_unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert http.get("/healthz").is_success
            assert seen <= {200, 503}
        assert postmaster(tmp_path) != before
        for client in (http, another):
            wait_until(lambda client=client: client.get("/readyz").is_success)
            data(client.post("/api/streams/s/messages", json=BODY))
            data(client.get("/api/streams/s/consumers/c/receive", params={"wait_ms": 1000}))
        assert server.lines("the database is there again, after")
        assert server.process.poll() is None


def test_what_was_acknowledged_before_the_kill_is_there(tmp_path: Path) -> None:
    with up(tmp_path, "2") as server, server.client() as http:
        says(server, "postgresql://", "http://")
        data(http.post("/api/streams", json={"name": "s", "dedup_window_ms": 3_600_000}))
        sent = 0
        for kill_at in (50, 150, 250, None):
            while sent < (kill_at or 300):
                message = {
                    "data": sent,
                    "id": str(sent),
                }  # sent again with its id, where it is not known what became of it
                answer = http.post("/api/streams/s/messages", json={"messages": [message]})
                assert answer.status_code in (200, 503)
                sent += answer.is_success
            if kill_at is not None:
                os.kill(postmaster(tmp_path), signal.SIGKILL)
        wait_until(lambda: http.get("/readyz").is_success)
        got = data(http.get("/api/streams/s/messages", params={"limit": 1000}))
        assert sorted(m["data"] for m in got) == list(range(300)), "none lost, none twice"


def test_two_servers_of_one_directory(tmp_path: Path) -> None:
    """They share the private PostgreSQL; when it is killed it is started once, and it outlives the one that stops."""
    with up(tmp_path, "2") as second, second.client() as other:
        says(second, "postgresql://", "http://")
        (tmp_path / "log").mkdir()
        with up(tmp_path, "2", log=tmp_path / "log/up.log") as first, first.client() as http:
            says(first, "postgresql://", "http://")
            data(http.post("/api/streams", json={"name": "s"}))
            os.kill(postmaster(tmp_path), signal.SIGKILL)
            for client in (http, other):
                wait_until(lambda client=client: client.post("/api/streams/s/messages", json=BODY).is_success)
            pid = postmaster(tmp_path)
        for _ in range(5):
            data(other.post("/api/streams/s/messages", json=BODY))
        assert postmaster(tmp_path) == pid
    wait_until(lambda: not psutil.pid_exists(pid))  # who leaves last stops it


def test_data_that_is_gone_is_not_replaced_by_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "1") as server, server.client() as http:
        says(server, "postgresql://", "http://")
        data(http.post("/api/streams", json={"name": "s"}))
        pid = postmaster(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        shutil.move(tmp_path / "pg/data", tmp_path / "moved")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.lines("cannot be started: the data of the private PostgreSQL is gone"))
        assert error(http.get("/readyz"), 503) == "database_away"
        assert error(http.post("/api/streams/s/messages", json=BODY), 503) == "database_away"
        assert not (tmp_path / "pg/data").exists()
        wait_until(lambda: not [p for p in psutil.process_iter() if "postgres" in p.name() and _is_of(p, tmp_path)])
        shutil.move(tmp_path / "moved", tmp_path / "pg/data")
        wait_until(lambda: http.post("/api/streams/s/messages", json=BODY).is_success, 60)
        assert len(server.lines("cannot be started")) == 1, "said once"


def _is_of(process: psutil.Process, directory: Path) -> bool:
    try:
        return str(directory) in str(process.cwd()) or str(directory) in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_revive_of_a_server_that_runs(tmp_path: Path) -> None:
    with start_or_join(tmp_path / "pg") as server:
        pid = server.pid
        server.revive()
        assert server.pid == pid
        shutil.move(tmp_path / "pg/data", tmp_path / "moved")
        with pytest.raises(EmbeddedServerError, match="is gone"):
            server.revive()
        shutil.move(tmp_path / "moved", tmp_path / "pg/data")


@BOTH
def test_started_while_the_database_is_away(new_cluster: NewCluster, tmp_path: Path, processes: str) -> None:
    own = new_cluster()
    own.stop()
    with up(tmp_path, processes, "--database", own.url()) as server, server.client() as http:
        wait_until(lambda: server.lines("the database is away, and waited for"))
        wait_until(lambda: _answers(http))
        assert data(http.get("/healthz")) == {"status": "ok"}
        for answer in (http.get("/readyz"), http.get("/api/streams"), http.post("/api/webhooks/x", content=b"{}")):
            assert error(answer, 503) == "database_away"
            assert int(answer.headers["retry-after"]) >= 1
        assert "headgate_database_up 0" in http.get("/metrics").text
        own.start()
        says(server, "postgresql://", server.url)
        wait_until(lambda: http.get("/readyz").is_success)
        data(http.post("/api/streams", json={"name": "s"}))
        said = [line.split("headgate.server:")[1] for line in server.lines("and waited for")]
        assert len(said) == len(set(said)), "each reason is said once: refused, and perhaps starting up"


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthz").is_success
    except httpx.ConnectError:
        return False


@BOTH
def test_sigterm_while_it_waits_for_the_database(new_cluster: NewCluster, tmp_path: Path, processes: str) -> None:
    own = new_cluster()
    own.stop()
    with up(tmp_path, processes, "--database", own.url()) as server:
        wait_until(lambda: server.lines("and waited for"))
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert server.process.stdout
        assert server.process.stdout.read() == ""


def test_sigterm_while_a_connection_is_being_made(tmp_path: Path) -> None:
    """To a server that takes the connection and says nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x"
        with up(tmp_path, "2", "--database", url) as server:
            silent.accept()
            server.process.terminate()
            assert server.process.wait(10) == 0


@pytest.mark.alone
@pytest.mark.parametrize("processes", ["processes=1", "processes=2"])
def test_failover_to_a_standby(new_cluster: NewCluster, bin_dir: Path, tmp_path: Path, processes: str) -> None:
    """With both servers in the URL nobody has to do anything: the primary ends, the standby is promoted."""
    primary = new_cluster()
    with psycopg.connect(primary.url()) as db:
        db.execute(schema.install_sql())
    standby = Cluster(bin_dir, tmp_path / "standby", tmp_path / "run", settings=primary.settings)
    standby.follow(primary)
    standby.start()
    hosts = f"{primary.socket_dir},{standby.socket_dir}"
    url = f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"
    try:
        with replica(url, tmp_path, processes) as server, server.client() as http, server.client() as another:
            data(http.post("/api/streams", json={"name": "s"}))
            sent = data(http.post("/api/streams/s/messages", json=BODY))["seqs"]
            with psycopg.connect(primary.url(), autocommit=True) as db:
                done = "select pg_current_wal_flush_lsn() = replay_lsn from pg_stat_replication"
                wait_until(lambda: db.execute(done).fetchone() == (True,))
            primary.stop("immediate")
            wait_until(lambda: error(http.get("/readyz"), 503))  # only the standby is left, which is read-only
            answer = http.post("/api/streams/s/messages", json=BODY)
            assert error(answer, 503) in ("database_away", "database_unavailable", "timeout")
            assert int(answer.headers["retry-after"]) >= 1
            standby.promote()
            began = time.monotonic()
            for client in (http, another):
                wait_until(lambda client=client: client.post("/api/streams/s/messages", json=BODY).is_success)
                assert client.get("/readyz").is_success
            assert time.monotonic() - began < 10
            got = data(http.get("/api/streams/s/messages"))
            assert sent[0] in [m["seq"] for m in got]
    finally:
        standby.stop("immediate")


@pytest.mark.alone
def test_away_for_long_enough_that_a_pool_would_wait(new_cluster: NewCluster, tmp_path: Path) -> None:
    """Meanwhile nobody waits for a connection; and it goes on at once when the database is back."""
    own = new_cluster()
    with psycopg.connect(own.url()) as db:
        db.execute(schema.install_sql())
    with replica(own.url(), tmp_path, "processes=2") as server, server.client() as http:
        data(http.post("/api/streams", json={"name": "s"}))
        own.stop("immediate")
        wait_until(lambda: http.post("/api/streams/s/messages", json=BODY).status_code == 503)
        wait_until(lambda: error(http.get("/readyz"), 503) == "database_away")
        slowest = 0.0
        until = time.monotonic() + 6  # a pool's next try comes after 1, 2, 4, 8 seconds
        while time.monotonic() < until:
            began = time.monotonic()
            assert error(http.post("/api/streams/s/messages", json=BODY), 503) == "database_away"
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1
        own.start()
        began = time.monotonic()
        wait_until(lambda: http.post("/api/streams/s/messages", json=BODY).is_success)
        assert time.monotonic() - began < 4


def test_what_passes_and_what_does_not() -> None:
    def failed(text: str) -> ConnectionFailed:
        found = ConnectionFailed("the connection to the database failed")
        found.__cause__ = psycopg.OperationalError(text)
        return found

    at = 'connection to server at "127.0.0.1", port 5432 failed: '
    for text in (
        at + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        at + "FATAL:  the database system is starting up",
        at + "FATAL:  sorry, too many clients already",
        "connection timeout expired",
        '[Errno -2] Name or service not known: "db"',
        at + "session is read-only",
    ):
        assert is_passing(failed(text)), text
    for text in (
        at + 'FATAL:  password authentication failed for user "x"',
        at + 'FATAL:  database "x" does not exist',
        at + 'FATAL:  role "x" does not exist',
        at + 'FATAL:  no pg_hba.conf entry for host "127.0.0.1", user "x", database "x", no encryption',
        at + "fe_sendauth: no password supplied",
    ):
        assert not is_passing(failed(text)), text
