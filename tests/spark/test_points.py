"""kill -9 at named points between our commits and Spark's, with transactions that commit late: everything once.

All seven ways of writing run side by side in one process. Each stops at a point of its own (headgate.lake.points),
transactions that began before commit while they stand there, and then everything is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import headgate
from headgate.lake.points import STOP_AT
from support.waiting import wait_until

from .lakes import go
from .seven import POINTS, ROWS, all_of

KEYS = 7
DEADLINE = 1500.0  # seconds for Spark's start and a batch or two of each: 40 on an idle machine, many on a busy one
SEND = """
select count(headgate.send('orders', %s || '.' || g, key => 'k' || g %% 7)) from generate_series(1, %s) g
"""


class Writers:
    """Transactions that send to "orders". A name is that of its transaction; data is name.1, name.2, …"""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: list[psycopg.Connection] = []
        self.names: list[tuple[str, int]] = []

    def send(self, name: str, count: int) -> None:
        """Sends at once."""
        self.begin(name, count).commit()

    def begin(self, name: str, count: int) -> psycopg.Connection:
        """Sends, and does not commit."""
        connection = psycopg.connect(self._url)
        self._open.append(connection)
        connection.execute(SEND, (name, count))
        self.names.append((name, count))
        return connection

    def close(self) -> None:
        for connection in self._open:
            connection.close()


@pytest.fixture
def writers(hg: headgate.Headgate) -> Iterator[Writers]:
    made = Writers(hg.url)
    yield made
    made.close()


def stop_and_kill(url: str, directory: Path, stops: dict[str, int], late: list[psycopg.Connection]) -> None:
    """Runs all of them until each has come to its point; commits what is late; and kills -9 whatever there is."""
    points = directory / "points"
    points.mkdir(exist_ok=True)
    for file in points.iterdir():
        file.unlink()
    for name, passes in stops.items():
        (points / name).write_text(str(passes))
    log = directory / "seven.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("seven.py"), url, str(directory)], cwd=directory,
            env={**os.environ, STOP_AT: str(points)}, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: "failed:" in log.read_text() or not waited_for(points, stops), DEADLINE)
        assert not waited_for(points, stops), log.read_text()
        for connection in late:
            connection.commit()
    finally:
        there = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in (process, *there):  # Spark's Python workers have a group of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(there, 30)


def waited_for(points: Path, stops: dict[str, int]) -> list[str]:
    return [name for name in stops if not (points / f"{name}.reached").exists()]


def in_streams(hg: headgate.Headgate, stream: str) -> list[tuple[str, str]]:
    found = hg.run("select key, data from headgate.messages(%s, max => 10000000)", (stream,))
    return [(key, data) for key, data in found]


def in_lake(path: Path) -> list[dict[str, Any]]:
    return pa.table(DeltaTable(str(path)).to_pyarrow_table()).to_pylist()


def kill_at_points(
    hg: headgate.Headgate, spark: Any, directory: Path, writers: Writers, *, rounds: int, seed: int
) -> Counter[str]:
    """The test, with so many kills of each of the seven; returns how often each point was the last."""
    rng = random.Random(seed)
    for name in ("orders", "copy", "again", "other"):
        hg.stream(name, create=True, lanes=4)
    # what is replayed: an archive with late transactions in its spans, enough for a batch or two in each round
    late = writers.begin("early", 40)
    writers.send("first", (2 * rounds + 2) * ROWS)
    text = f'kind = "archive"\nname = "old"\nstream = "orders"\nto = "{directory}/old"\npartition_by = []\n'
    go(hg, spark, directory, text)
    late.commit()
    writers.send("second", ROWS)
    go(hg, spark, directory, text)
    replayed = list(writers.names)

    killed: Counter[str] = Counter()
    waiting: list[psycopg.Connection] = []
    for number in range(rounds):
        before = waiting  # open since the last round: its process was killed meanwhile
        waiting = [writers.begin(f"late{number}", 30)]
        during = writers.begin(f"during{number}", 30)
        writers.send(f"round{number}", 3 * ROWS)
        # first the point after the commit, then the others in turn
        stops = {points[(number + 1) % len(points)]: rng.randint(0, 1) for points in POINTS.values()}
        stop_and_kill(hg.url, directory, stops, [during, *before])
        killed.update(list(stops))  # (of a dict it would add the values)
    for connection in waiting:
        connection.commit()

    assert all_of(spark, hg.url, directory) == {}
    everything = check_streams(hg, writers.names, "orders")
    for stream in ("copy", "other"):
        assert check_streams(hg, writers.names, stream) == everything
    check_streams(hg, replayed, "again")
    rows = hg.run("select key, data from numbers", ())
    assert Counter((key, data) for key, data in rows) == everything
    for name in ("archive", "made"):
        assert Counter((r["key"], r["data"]) for r in in_lake(directory / name)) == everything
    newest = hg.run("select distinct on (key) key, seq, data from headgate.log_orders order by key, seq desc", ())
    found = [(r["key"], r["seq"], r["data"]) for r in in_lake(directory / "now")]
    assert sorted(found) == [tuple(row) for row in newest]
    return killed


def check_streams(hg: headgate.Headgate, names: list[tuple[str, int]], stream: str) -> Counter[tuple[str, str]]:
    """The stream has all messages of these transactions once, and those of a transaction and key in their order."""
    found = in_streams(hg, stream)
    expected = Counter((f"k{n % KEYS}", f"{name}.{n}") for name, count in names for n in range(1, count + 1))
    assert Counter(found) == expected
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key, data in found:
        name, _, n = data.partition(".")
        order[key, name].append(int(n))
    assert all(numbers == sorted(numbers) for numbers in order.values())
    return expected


def test_a_kill_of_each(hg: headgate.Headgate, spark: Any, tmp_path: Path, writers: Writers) -> None:
    killed = kill_at_points(hg, spark, tmp_path, writers, rounds=1, seed=3)
    assert killed.total() == len(POINTS)


@pytest.mark.slow
def test_three_kills_of_each(hg: headgate.Headgate, spark: Any, tmp_path: Path, writers: Writers) -> None:
    """21 kills, at every point that there is."""
    killed = kill_at_points(hg, spark, tmp_path, writers, rounds=3, seed=1)
    assert killed.total() == 3 * len(POINTS)
    assert set(killed) == {point for points in POINTS.values() for point in points}
