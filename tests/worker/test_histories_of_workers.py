"""Workers beside trouble, at random: nobody idle beside what waits, stops in time, and counts that are exact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from headgate.database import schema
from support.frozen import Network
from support.postgres import NewCluster
from support.servers import replica
from worker.histories import Found, History, World

Play = Callable[[History], Found]


@pytest.fixture(scope="module")
def play(new_cluster: NewCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    cluster = new_cluster()
    with psycopg.connect(cluster.url()) as connection:
        connection.execute(schema.install_sql())
    host = str(psycopg.conninfo.conninfo_to_dict(cluster.url())["host"])
    with ExitStack() as stack:
        network = stack.enter_context(Network(next(Path(host).glob(".s.PGSQL.*[0-9]"))).running())
        servers: list[tuple[str, str]] = []

        def server() -> tuple[str, str]:
            if not servers:
                found = stack.enter_context(replica(cluster.url(), tmp_path_factory.mktemp("server")))
                servers.append((found.url, found.token))
            return servers[0]

        yield lambda history: World(history, cluster, network, server).play()


@pytest.mark.parametrize(
    "history",
    [
        History(1, faults=False, steps=8),
        History(2, faults=False, steps=8, order="key"),
        History(3, steps=8),
        History(4, steps=8, over="http"),
    ],
    ids=["calm", "calm, in order", "trouble", "trouble, over HTTP"],
)
def test_short_ones(play: Play, history: History) -> None:
    found = play(history)
    assert found.idle < 10  # (a second, of which the machine may make more)
    assert found.stop < 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADGATE_HISTORIES", "24"))))
def test_long_ones(play: Play, seed: int) -> None:
    """Handlers that take from a millisecond to ten seconds."""
    history = History(
        1000 + seed, order=("none", "key")[seed % 2], over=("database", "http")[seed // 2 % 2], faults=seed % 4 != 0,
        steps=20, longest=10, fault=5, pause=2,
    )  # fmt: skip
    found = play(history)
    print(seed, found.messages, f"idle {found.idle:.2f} stop {found.stop:.2f}", *found.done, sep=", ")
    assert found.idle < 1
    assert found.stop < 2
