"""With the database away, a server says so at once, and its own figures are still there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from support.exposition import families
from support.postgres import NewCluster
from support.servers import Replica, data, error, replica
from support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster_of_its_own(new_cluster: NewCluster) -> Cluster:
    cluster = new_cluster()
    with psycopg.connect(cluster.url()) as connection:
        connection.execute(schema.install_sql())
    return cluster


@pytest.fixture
def server(cluster_of_its_own: Cluster, tmp_path: Path) -> Iterator[Replica]:
    with replica(cluster_of_its_own.url(), tmp_path) as found:
        yield found


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    cluster.stop("immediate")
    try:
        yield
    finally:
        cluster.start()


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Every process of PostgreSQL stands still: connections stay, nothing answers."""
    assert cluster.pid is not None
    postmaster = psutil.Process(cluster.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    for p in processes:
        os.kill(p.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for p in processes:
            os.kill(p.pid, signal.SIGCONT)


def up(text: str) -> float:
    return float(families(text)["headgate_database_up"].samples[0].value)


@pytest.mark.parametrize("away", [stopped, frozen])
def test_metrics_and_readiness(server: Replica, cluster_of_its_own: Cluster, away: object) -> None:
    monitor = server.new_token("monitor")
    with server.client() as http, server.client(monitor) as prometheus:
        data(http.post("/api/streams", json={"name": f"s-{away.__name__}"}))  # type: ignore[attr-defined]
        assert up(prometheus.get("/metrics").text) == 1
        with away(cluster_of_its_own):  # type: ignore[operator]
            time.sleep(1.2)  # the token is no longer remembered as valid
            for _ in range(3):
                began = time.monotonic()
                answer = prometheus.get("/metrics")
                assert answer.status_code == 200, answer.text
                assert time.monotonic() - began < 2.5, "0.5 s each for the token and the figures, on a busy machine"
                found = families(answer.text)
                assert up(answer.text) == 0
                assert "headgate_consumer_lag" not in found
                assert found["headgate_http_requests_total"].samples, "what this process did"
            began = time.monotonic()
            assert error(http.get("/readyz"), 503) in ("database_away", "database_busy")
            assert time.monotonic() - began < 4
            assert http.get("/healthz").is_success, "nothing is wrong with this process"
            stranger = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer hg_" + "0" * 16 + "_x"})
            assert stranger.status_code in (401, 503)
        wait_until(lambda: http.get("/readyz").is_success)
        assert up(prometheus.get("/metrics").text) == 1


def test_a_revoked_token_is_not_taken_for_long(server: Replica, cluster_of_its_own: Cluster) -> None:
    """What was found to be revoked is not valid again because the database goes away."""
    with server.client() as http:
        made = data(http.post("/api/tokens", json={"name": "t", "scopes": ["monitor"]}))
        with server.client(made["token"]) as prometheus:
            assert prometheus.get("/metrics").is_success
            data(http.delete(f"/api/tokens/{made['id']}"))
            wait_until(lambda: prometheus.get("/metrics").status_code == 401)
            with stopped(cluster_of_its_own):
                time.sleep(1.2)  # nor is it remembered that it is not
                assert not prometheus.get("/metrics").is_success
        wait_until(lambda: http.get("/readyz").is_success)


def test_the_reason_is_the_true_one(server: Replica, cluster_of_its_own: Cluster) -> None:
    with server.client() as http:
        with stopped(cluster_of_its_own):
            answer = http.get("/readyz")
        assert error(answer, 503) == "database_away"
        assert "does not answer" in answer.json()["error"]["message"]
        wait_until(lambda: http.get("/readyz").is_success)
