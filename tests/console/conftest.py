"""A server with something of everything in it, and a browser: one of each for a module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.servers import Replica, replica

from .browser import Browser, Tab
from .shop import fill

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def shop_url(cluster: Cluster, fresh_databases: object) -> Iterator[str]:
    """A database for the module."""
    name = fresh_databases.take()  # type: ignore[attr-defined]
    yield cluster.url(name)
    fresh_databases.drop(name)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def shop(shop_url: str) -> Iterator[headgate.Headgate]:
    """The same, with streams, consumers and messages in all states."""
    with headgate.connect(shop_url) as hg:
        fill(hg)
        yield hg


@pytest.fixture(scope="module")
def server(shop: headgate.Headgate, shop_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A server for it."""
    with replica(shop_url, tmp_path_factory.mktemp("console"), "push=off") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real one, without a screen."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium (tools/install_chromium.py does it for root)")
    with Browser.started(Path(program)) as found:
        yield found


@pytest.fixture(scope="module")
def open_tab(browser: Browser, server: Replica) -> Iterator[Tab]:
    """A page where the administrator is logged in."""
    with browser.tab(server.url, server.token) as found:
        yield found
        found.complaints.clear()  # each test has seen its own


@pytest.fixture
def tab(open_tab: Tab) -> Iterator[Tab]:
    """The same. What its log complains of fails the test."""
    open_tab.complaints.clear()
    yield open_tab
    assert open_tab.complaints == []


@pytest.fixture
def db(shop_url: str) -> Iterator[psycopg.Connection]:
    """What the database says."""
    with psycopg.connect(shop_url, autocommit=True) as connection:
        yield connection
