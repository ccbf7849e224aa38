"""Workers and a database that does not answer, or refuses: a stop takes the grace and two seconds at the most."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate.database import schema
from headgate.postgres.cluster import Cluster
from support.clients import running, until
from support.frozen import Network, frozen
from support.postgres import NewCluster
from support.waiting import wait_until


@pytest.fixture(scope="module")
def own_cluster(new_cluster: NewCluster) -> Cluster:
    cluster = new_cluster()
    with psycopg.connect(cluster.url()) as connection:
        connection.execute(schema.install_sql())
    return cluster


@pytest.fixture(scope="module")
def network(own_cluster: Cluster) -> Iterator[Network]:
    host = psycopg.conninfo.conninfo_to_dict(own_cluster.url())["host"]
    with Network(next(Path(str(host)).glob(".s.PGSQL.*[0-9]"))).running() as network:
        yield network


def through(network: Network) -> str:
    return f"postgresql://postgres@127.0.0.1:{network.port}/postgres?sslmode=disable&gssencmode=disable"


@pytest.fixture
def orders(own_cluster: Cluster) -> Iterator[headgate.Stream]:
    with headgate.connect(own_cluster.url()) as hg:
        stream = hg.stream("orders", create=True, lanes=4)
        yield stream
    with psycopg.connect(own_cluster.url()) as db:
        db.execute("select headgate.drop_stream('orders')")


SYNC = """
import sys, time, pathlib, logging, headgate
url, go, grace = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
logging.basicConfig(format="%(message)s")
hg = headgate.connect(url)
@hg.stream("orders").consumer("c").worker(grace=grace)
def handle(m):
    print("begun", flush=True)
    while not go.exists():
        time.sleep(0.01)
print("ready", flush=True)
handle.run()
print(time.monotonic(), flush=True)
"""
ASYNC = """
import sys, time, asyncio, pathlib, logging, headgate
url, go, grace = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
logging.basicConfig(format="%(message)s")
async def main():
    async with await headgate.connect_async(url) as hg:
        @(await (await hg.stream("orders")).consumer("c")).worker(grace=grace)
        async def handle(m):
            print("begun", flush=True)
            while not go.exists():
                await asyncio.sleep(0.01)
            await hg.run("select 1")
        print("ready", flush=True)
        await handle.run()
        print(time.monotonic(), flush=True)
asyncio.run(main())
"""


class TestStopping:
    @pytest.mark.parametrize(
        ("program", "how", "grace", "busy"),
        [
            (SYNC, "frozen", 1, True),
            (ASYNC, "frozen", 30, False),
            (ASYNC, "network", 1, True),
            (SYNC, "refused", 0.5, True),
        ],
        ids=["sync, frozen", "async, frozen, idle", "async, network", "sync, refused"],
    )
    def test_in_time(
        self,
        own_cluster: Cluster,
        network: Network,
        orders: headgate.Stream,
        tmp_path: Path,
        program: str,
        how: str,
        grace: float,
        busy: bool,
    ) -> None:
        orders.consumer("c", create=True)
        if busy:
            orders.send("a")
        url = through(network) if how == "network" else own_cluster.url()
        process = subprocess.Popen(
            [sys.executable, "-c", program, url, str(tmp_path / "go"), str(grace)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            if busy:
                assert process.stdout.readline() == "begun\n"
            else:
                receives = "select count(*) from pg_stat_activity where query ~ '^select . from headgate.receive_'"
                wait_until(lambda: orders.hg.run(receives)[0][0])
            with ExitStack() as stack:
                if how == "frozen":
                    stack.enter_context(frozen(own_cluster))
                elif how == "network":
                    network.freeze()
                    stack.callback(network.thaw)
                else:
                    own_cluster.stop("immediate")
                    stack.callback(own_cluster.start)
                (tmp_path / "go").touch()  # what is handled now can be told to nobody
                time.sleep(0.3)
                began = time.monotonic()
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            assert float(process.stdout.read()) - began < (grace if busy else 0) + 2
            said = process.stderr.read()
            if busy:
                assert "1 messages could not be settled: they come again" in said
            if how != "refused":
                assert "the database does not answer" in said
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()

    @pytest.mark.alone
    async def test_while_it_connects(self, network: Network, orders: headgate.Stream) -> None:
        orders.consumer("c", create=True)
        async with await headgate.connect_async(through(network)) as hg:
            worker = (await (await hg.stream("orders")).consumer("c")).worker(print)
            network.freeze()
            try:
                task = asyncio.create_task(worker.run())
                await asyncio.sleep(0.2)
                began = time.monotonic()
                worker.stop()
                await asyncio.wait_for(task, 30)
                assert time.monotonic() - began < 2
            finally:
                network.thaw()

    # Beside busy loops it gave up waiting after 30 s, with both connections in use: an open finding, not a slow test.
    @pytest.mark.alone
    async def test_it_goes_on_when_the_database_does(
        self,
        network: Network,
        orders: headgate.Stream,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Also where the network has forgotten the connections: they are given up after a while."""
        monkeypatch.setattr("headgate.worker.connections.LONGEST_CALL", 1.0)
        monkeypatch.setattr("headgate.worker.connections.PATIENCE", 0.5)
        monkeypatch.setattr("headgate.worker.connections.LONGEST_RECONNECT", 1.0)
        orders.consumer("c", create=True)
        seen: list[int] = []
        async with await headgate.connect_async(through(network)) as hg:

            @(await (await hg.stream("orders")).consumer("c")).worker
            async def handle(m: headgate.AsyncMessage) -> None:
                seen.append(m.data)

            task = asyncio.create_task(handle.run())
            orders.send(1)
            await until(lambda: seen == [1])
            network.freeze()
            await until(lambda: "the database is away" in caplog.text)
            assert "the database does not answer" in caplog.text
            network.thaw()
            orders.send(2)
            await until(lambda: seen == [1, 2])
            handle.stop()
            await task


def test_every_message_is_accounted_for(own_cluster: Cluster, orders: headgate.Stream) -> None:
    """Two workers, a database that stands still for longer than ack_wait, changed settings."""
    consumer = orders.consumer("c", create=True, ack_wait=30)
    count, dice, handled = 150, random.Random(3), Counter[int]()
    orders.send_batch([(f"k{n}", n) for n in range(count)])

    def handle(m: headgate.Message) -> None:
        time.sleep(dice.choice([0.001, 0.01, 0.3]))
        handled[m.data] += 1
        if dice.random() < 0.1:
            raise headgate.Retry(delay=0.05)

    with headgate.connect(own_cluster.url()) as hg:
        other = hg.stream("orders").consumer("c")
        workers = [consumer.worker(handle, concurrency=4), other.worker(handle, concurrency=4)]
        with running(workers[0]), running(workers[1]):
            wait_until(lambda: len(handled) > 10)
            consumer.alter(ack_wait=0.5)
            with frozen(own_cluster):
                time.sleep(1)
            wait_until(lambda: len(handled) == count and consumer.info().lag == 0)
    for s in (worker.stats for worker in workers):
        assert s.received == s.acked + s.nacked + s.released + s.lost + s.settled
    acked, nacked, lost = (sum(getattr(w.stats, n) for w in workers) for n in ("acked", "nacked", "lost"))
    assert acked + nacked <= handled.total() <= acked + nacked + lost
    assert acked <= count <= acked + lost
