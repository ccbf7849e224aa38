"""PostgreSQL servers whose tables are read: the one that is tested, and an older one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.postgres.cluster import Cluster
from support.postgres import SETTINGS
from support.source_readers import Reading


@pytest.fixture(scope="session")
def oldest_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A PostgreSQL 15, Debian's, whichever one is tested: a source of changes may be older than the stream."""
    bin_dir = Path("/usr/lib/postgresql/15/bin")
    if not (bin_dir / "postgres").exists():
        pytest.skip("there is no PostgreSQL 15: apt-get install postgresql")
    home = tmp_path_factory.mktemp("pg15")
    cluster = Cluster(bin_dir, home / "data", home / "run", settings=SETTINGS)
    cluster.init()
    cluster.start()
    yield cluster
    cluster.stop("immediate")


@pytest.fixture(scope="session", params=["same", "15"])
def source_cluster(request: pytest.FixtureRequest) -> Cluster:
    """The PostgreSQL whose tables are read: the one that is tested, and 15."""
    name = "cluster" if request.param == "same" else "oldest_cluster"
    found: Cluster = request.getfixturevalue(name)
    return found


@pytest.fixture
def reading(database_url: str) -> Iterator[Callable[[], Reading]]:
    """Starts a process that reads sources, as often as it is called."""
    started: list[Reading] = []

    def start() -> Reading:
        started.append(Reading(database_url))
        return started[-1]

    yield start
    for process in started:
        process.kill()
