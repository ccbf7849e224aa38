"""The server itself: health, metrics, its description, and what it does when there is too much or no database."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

import headgate
from headgate import cli
from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.server.api.routes import ROUTES
from headgate.server.http.app import App
from headgate.server.http.errors import problem
from headgate.server.server import Server
from headgate.server.settings import Settings
from support.databases import new_database
from support.postgres import NewCluster
from support.servers import Replica, data, error, replica
from support.waiting import wait_until


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with new_database(cluster) as url, replica(url, tmp_path_factory.mktemp("server")) as found:
        with found.client() as http:
            data(http.post("/api/streams", json={"name": "orders"}))
            data(http.post("/api/streams/orders/consumers", json={"name": "billing"}))
            data(http.post("/api/streams/orders/messages", json={"messages": [{"data": 1}, {"data": 2}]}))
            data(http.get("/api/streams/orders/consumers/billing/receive", params={"wait_ms": 2000}))
        yield found


def test_health(server: Replica) -> None:
    with httpx.Client(base_url=server.url) as http:
        assert data(http.get("/healthz")) == {"status": "ok"}
        assert data(http.get("/readyz")) == {"status": "ready"}


LINE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+$')


def test_metrics(server: Replica) -> None:
    with server.client(server.new_token("monitor")) as http:
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert [line for line in samples if not LINE.match(line.replace("+Inf", "Inf"))] == []
    labels = 'stream="orders",consumer="billing"'
    for wanted in (
        f"headgate_consumer_lag{{{labels}}} 2",
        f"headgate_consumer_in_flight{{{labels}}} 1",
        f"headgate_consumer_delivered_total{{{labels}}} 1",
        'headgate_stream_messages{stream="orders"} 2',
        'headgate_http_messages_total{what="published",stream="orders"} 2',
        f'headgate_http_messages_total{{what="delivered",{labels}}} 1',
        "headgate_database_up 1",
    ):
        assert wanted in samples
    route = 'route="/api/streams/{stream}/messages",method="POST"'
    assert f"headgate_http_request_seconds_count{{{route}}} 1" in samples
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    for sample in samples:
        name = re.split(r"[{ ]", sample)[0]
        assert name in named or re.sub("_(bucket|sum|count)$", "", name) in named


def test_openapi(server: Replica) -> None:
    with httpx.Client(base_url=server.url) as http:
        api = http.get("/openapi.json").json()
        page = http.get("/docs")
    described = {(method.upper(), path) for path, methods in api["paths"].items() for method in methods}
    assert described == {(r.method, r.path) for r in ROUTES.all}
    for methods in api["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
    assert page.headers["content-type"].startswith("text/html")
    assert "https://" not in page.text
    assert "http://" not in page.text
    for path in api["paths"]:
        assert path in page.text


class TestRoot:
    def test_a_browser_gets_a_page(self, server: Replica) -> None:
        with httpx.Client(base_url=server.url) as http:
            page = http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "console/app.js" in page.text  # tests/console has the rest
        assert "https://" not in page.text
        token = server.token.partition(".")[2]
        assert token
        assert token not in page.text

    def test_the_docs_load_nothing(self, server: Replica) -> None:
        page = httpx.get(f"{server.url}/docs", headers={"Accept": "text/html"})
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        [style] = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy

    def test_a_program_gets_json(self, server: Replica) -> None:
        for headers in ({}, {"Accept": "application/json"}):
            found = data(httpx.get(server.url, headers=headers))
            assert found["name"] == "headgate"
            assert "/docs" in found["links"]
        assert error(httpx.post(server.url), 405) == "method_not_allowed"
        assert error(httpx.get(f"{server.url}//"), 404) == "not_found"

    def test_it_needs_no_database(self) -> None:
        assert not next(r for r in ROUTES.all if r.path == "/").needs_database


def test_every_error_has_a_status() -> None:
    for name, cls in vars(headgate.errors).items():
        if isinstance(cls, type) and issubclass(cls, headgate.Error) and cls is not headgate.Error:
            assert problem(cls("x")).status != 500, name


async def test_too_many_requests(ahg: headgate.AsyncHeadgate) -> None:
    """Beyond what it may have in work the server refuses, and is well again afterwards."""
    service = Server(ahg, Settings(auth=False, in_work=3, waiting=2))
    transport = httpx.ASGITransport(App(service))
    service.start()
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        data(await http.post("/api/streams", json={"name": "s"}))
        data(await http.post("/api/streams/s/consumers", json={"name": "c"}))
        answers = await asyncio.gather(*(http.get("/api/streams") for _ in range(10)))
        refused = [a for a in answers if a.status_code == 429]
        assert len(refused) == 7
        assert error(refused[0], 429) == "busy"
        assert refused[0].headers["retry-after"] == "1"
        polls = [
            asyncio.create_task(http.get("/api/streams/s/consumers/c/receive", params={"wait_ms": 1000}))
            for _ in range(3)
        ]
        assert sorted(a.status_code for a in await asyncio.gather(*polls)) == [200, 200, 429]
        assert service.in_work.now == service.waiting.now == service.bodies.now == 0
        assert (await http.get("/api/streams")).is_success
    await service.stop()


async def test_it_takes_too_long(ahg: headgate.AsyncHeadgate, database_url: str) -> None:
    service = Server(ahg, Settings(auth=False, timeout=0.3))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(App(service)), base_url="http://localhost") as http:
        data(await http.post("/api/streams", json={"name": "s"}))
        async with await psycopg.AsyncConnection.connect(database_url) as conn:
            await conn.execute("lock table headgate.stream in access exclusive mode")
            answer = await http.get("/api/streams")
            assert error(answer, 503) == "timeout"
            assert "retry-after" in answer.headers
        assert (await http.get("/api/streams")).is_success


@pytest.mark.parametrize("as_json", [False, True])
def test_headgate_up(database_url: str, tmp_path: Path, as_json: bool) -> None:
    environment = {**os.environ, "HEADGATE_EMBEDDED_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "headgate.cli", "up", "--port", "0", "--database", database_url]
    with subprocess.Popen(
        [*command, "--json"] if as_json else command,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as up:  # fmt: skip
        try:
            assert up.stdout is not None
            assert up.stderr is not None
            if as_json:
                said = json.loads("".join(iter(lambda: up.stdout.readline(), "}\n")) + "}")  # type: ignore[union-attr]
                database, url, file = said["url"], said["http"], Path(said["token_file"])
            else:
                database, url = up.stdout.readline().strip(), up.stdout.readline().strip()
                file = Path(up.stderr.readline().split()[-1])
            assert database == database_url
            assert file == tmp_path / "token"
            token = file.read_text().strip()
            assert data(httpx.get(f"{url}/api/streams", headers={"Authorization": f"Bearer {token}"})) == []
            up.send_signal(signal.SIGTERM)
            assert up.wait(20) == 0
            assert token.partition(".")[2] not in up.stderr.read() + up.stdout.read(), "a token is never logged"
        finally:
            up.kill()


def test_a_port_in_use(server: Replica, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.url.rpartition(":")[2]
    assert cli.main(["up", "--no-auth", "--database", database_url, "--port", port]) == 1
    assert f"error: port {port} of 127.0.0.1 is in use" in capsys.readouterr().err
    assert cli.main(["up", "--no-auth", "--database", database_url, "--host", "0.0.0.0"]) == 1
    assert "without tokens" in capsys.readouterr().err


END_OTHERS = """
select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()
"""


def test_a_database_that_is_read_only_for_a_while(cluster: Cluster, tmp_path: Path) -> None:
    """As after a failover: to be tried again, and no fault of the server's."""
    body = {"messages": [{"data": 1}]}

    def code() -> str:
        answer = http.post("/api/streams/s/messages", json=body)
        return "" if answer.is_success else error(answer, 503)

    with new_database(cluster) as url, replica(url, tmp_path) as server, server.client() as http:
        data(http.post("/api/streams", json={"name": "s"}))
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"alter database {db.info.dbname} set default_transaction_read_only = on")
            db.execute(END_OTHERS)
            wait_until(lambda: code() == "database_unavailable")
            assert int(http.post("/api/streams/s/messages", json=body).headers["retry-after"]) >= 1
            assert error(http.get("/readyz"), 503) == "database_unavailable"
            assert http.get("/healthz").is_success
            db.execute(f"alter database {db.info.dbname} reset default_transaction_read_only")
        wait_until(lambda: code() == "")  # connections that were refused are given up
        wait_until(lambda: http.get("/readyz").is_success)


def test_functions_of_a_newer_release(cluster: Cluster, tmp_path: Path) -> None:
    """During a rollout: the old servers stay in service. Functions older than the server are another matter."""
    with new_database(cluster) as url, replica(url, tmp_path) as server, server.client() as http:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("update headgate.functions_digest set version = version + 1, digest = 'newer'")
            assert data(http.get("/readyz")) == {"status": "ready"}
            with replica(url, tmp_path) as restarted, restarted.client() as other:
                assert data(other.get("/readyz")) == {"status": "ready"}
            assert db.execute("select digest from headgate.functions_digest").fetchone() == ("newer",)
            db.execute("update headgate.functions_digest set version = 0")
            assert error(http.get("/readyz"), 503) == "schema_outdated"


def test_without_its_database(new_cluster: NewCluster, tmp_path: Path) -> None:
    own = new_cluster()
    with psycopg.connect(own.url()) as db:
        db.execute(schema.install_sql())
    with replica(own.url(), tmp_path) as server, server.client() as http:
        data(http.post("/api/streams", json={"name": "s"}))
        body = {"messages": [{"data": 1}]}
        data(http.post("/api/streams/s/messages", json=body))
        own.stop("immediate")
        answer = http.post("/api/streams/s/messages", json=body)
        assert error(answer, 503) == "database_away"
        assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200, "restarting it would not help"
        assert str(own.socket_dir) not in answer.text
        own.start()
        wait_until(lambda: http.post("/api/streams/s/messages", json=body).is_success)
        assert http.get("/readyz").is_success
