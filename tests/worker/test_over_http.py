"""Workers over HTTP: the same engine, whatever happens to the worker, the server or its database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psycopg
import pytest

import headgate
from support.clients import running, running_async, until
from support.frozen import Network
from support.servers import Replica, replica
from support.waiting import wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def http(server: Replica) -> Iterator[headgate.Headgate]:
    with headgate.connect(server.url, token=server.token) as hg:
        yield hg


@pytest.fixture
def stream(http: headgate.Headgate) -> headgate.Stream:
    return http.stream(f"s{next(_numbers)}", create=True, lanes=4)


def rest(consumer: headgate.Consumer) -> tuple[int, int]:
    info = consumer.info()
    return info.lag, info.in_flight


def test_worker(stream: headgate.Stream) -> None:
    """Messages that succeed, fail, and take longer than their deadline, in batches."""
    consumer = stream.consumer("c", create=True, ack_wait=2, max_deliver=3, backoff=0)
    seen: Counter[int] = Counter()

    @consumer.worker(concurrency=4, batch_size=50)
    def handle(m: headgate.Message) -> None:
        seen[m.data] += 1
        if m.data == 7 and m.attempt < 3:
            raise headgate.Retry(delay=0)
        if m.data == 8:
            time.sleep(2.6)  # it is kept meanwhile

    with running(handle):
        stream.send_batch(range(200))
        wait_until(lambda: rest(consumer) == (0, 0))
    assert seen == Counter({**dict.fromkeys(range(200), 1), 7: 3})
    assert (handle.stats.acked, handle.stats.nacked, handle.stats.lost) == (200, 2, 0)


async def test_async_worker_in_order(server: Replica, stream: headgate.Stream) -> None:
    """What fails holds back the later ones of its key, also those that came with it."""
    async with await headgate.connect_async(server.url, token=server.token) as hg:
        target = await hg.stream(stream.name)
        consumer = await target.consumer("c", create=True, order="key", backoff=0)
        seen: list[tuple[str | None, int]] = []

        @consumer.worker(concurrency=8, batch_size=100)
        async def handle(m: headgate.AsyncMessage) -> None:
            if m.data == 3 and m.attempt == 1:
                raise RuntimeError("once")
            seen.append((m.key, m.data))

        async with running_async(handle):
            await target.send_batch([headgate.Outgoing(n, key=f"k{n % 5}") for n in range(100)])
            await until(lambda: len(seen) == 100)
    for key in range(5):
        assert [n for k, n in seen if k == f"k{key}"] == list(range(key, 100, 5))


def test_leased_worker(http: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True, leased=True, lease_time=2)
    gained: set[int] = set()
    done: list[int] = []

    def gain(lanes: frozenset[int]) -> None:
        gained.update(lanes)

    @consumer.worker(on_lanes_gained=gain)
    def handle(m: headgate.Message) -> None:
        done.append(m.data)

    with running(handle):
        stream.send_batch([headgate.Outgoing(n, key=str(n)) for n in range(50)])
        wait_until(lambda: len(done) == 50)
        assert gained == {0, 1, 2, 3}
        assert [len(w.lanes) for w in http.insights.workers(stream.name, "c")] == [4]
    wait_until(lambda: rest(consumer) == (0, 0))
    assert http.insights.workers(stream.name) == []


def test_an_idle_leased_worker_leaves_when_it_stops(http: headgate.Headgate, stream: headgate.Stream) -> None:
    """A receive that waits in the server is not one that gets no answer: the lanes are handed over all the same."""
    consumer = stream.consumer("c", create=True, leased=True, lease_time=60)
    for idle in (0.15, 0.3, 0.6):
        worker = consumer.worker()(lambda m: None)
        with running(worker):
            stream.send({})
            wait_until(lambda: worker.stats.acked == 1)  # noqa: B023
            time.sleep(idle)  # into a receive that waits
        assert http.insights.workers(stream.name) == []


def test_a_stop_hands_back(stream: headgate.Stream) -> None:
    """What was not begun goes back at once, and counts as no attempt."""
    consumer = stream.consumer("c", create=True)
    stream.send_batch(range(50))
    begun, go_on = threading.Event(), threading.Event()

    @consumer.worker(concurrency=1, batch_size=50, prefetch=50)
    def handle(m: headgate.Message) -> None:
        begun.set()
        assert go_on.wait(30)

    with running(handle):
        assert begun.wait(30)
        wait_until(lambda: handle.stats.received == 50)
        handle.stop()
        wait_until(lambda: handle.stats.released == 49)
        go_on.set()
    assert (handle.stats.acked, handle.stats.released) == (1, 49)
    assert {m.attempt for m in consumer.receive(100)} == {1}


def test_an_idle_worker_wakes_and_stops_at_once(stream: headgate.Stream) -> None:
    consumer = stream.consumer("c", create=True)
    came: list[float] = []

    @consumer.worker()
    def handle(m: headgate.Message) -> None:
        came.append(time.monotonic())

    with running(handle):
        stream.send("first")
        wait_until(lambda: len(came) == 1)
        stream.send("second")
        wait_until(lambda: len(came) == 2)
        began = time.monotonic()
        handle.stop()
    assert time.monotonic() - began < 5, "no poll holds up the stop"


WORKER = """
import headgate, os, sys
hg = headgate.connect(sys.argv[1])
consumer = hg.stream(sys.argv[2]).consumer("c")

@consumer.worker(concurrency=1, batch_size=20, prefetch=20)
def handle(m):
    print(m.data, flush=True)
    if os.environ.get("STUCK"):
        import time
        time.sleep(600)

handle.run()
"""


def start(server: Replica, stream: headgate.Stream, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, server.url, stream.name],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "HEADGATE_TOKEN": server.token, **environment},
    )  # fmt: skip


def test_kill_9_of_a_worker(server: Replica, stream: headgate.Stream) -> None:
    """What it had in hand comes again after the ack_wait, none is lost; SIGTERM ends the other one."""
    consumer = stream.consumer("c", create=True, ack_wait=1)
    stream.send_batch(range(40))
    stuck = start(server, stream, STUCK="1")
    try:
        assert stuck.stdout
        assert stuck.stdout.readline()
    finally:
        stuck.send_signal(signal.SIGKILL)
        stuck.wait()
    consumer.alter(ack_wait=30)  # so that the other one loses nothing on a machine at work
    other = start(server, stream)
    try:
        wait_until(lambda: rest(consumer) == (0, 0), 120)
        other.terminate()
        assert other.wait(20) == 0
        assert other.stdout
        assert sorted(int(line) for line in other.stdout) == list(range(40))
    finally:
        other.kill()
        other.wait()


def test_the_server_is_killed_and_comes_back(database_url: str, tmp_path: Path, orders: headgate.Stream) -> None:
    """The worker waits for it, and everything is handled; who sends meanwhile waits too."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    consumer = orders.consumer("c", create=True, ack_wait=1)
    seen: set[int] = set()
    with ExitStack() as later, replica(database_url, tmp_path, port=port) as first:
        hg = later.enter_context(headgate.connect(first.url, token=first.token))
        there = hg.stream("orders").consumer("c")

        @there.worker(concurrency=2)
        def handle(m: headgate.Message) -> None:
            seen.add(m.data)

        with running(handle):
            hg.stream("orders").send_batch(range(100))
            wait_until(lambda: len(seen) > 20)
            first.process.kill()
            first.process.wait()
            sender = threading.Thread(target=lambda: hg.stream("orders").send(100))
            sender.start()
            wait_until(lambda: handle._database._away)
            later.enter_context(replica(database_url, tmp_path, port=port))
            sender.join(30)
            assert not sender.is_alive()
            wait_until(lambda: seen == set(range(101)))
            wait_until(lambda: rest(consumer) == (0, 0))
        assert handle.stats.reconnects >= 1


def test_connections_are_cut(server: Replica, stream: headgate.Stream) -> None:
    """By a proxy, again and again: what has an id is sent once, and everything is handled and accounted for."""
    consumer = stream.consumer("c", create=True, ack_wait=5, backoff=0)
    seen: Counter[int] = Counter()
    with (
        Network(int(server.url.rpartition(":")[2])).running() as network,
        headgate.connect(f"http://127.0.0.1:{network.port}", token=server.token, timeout=60) as hg,
    ):
        there = hg.stream(stream.name)
        worker = there.consumer("c").worker(lambda m: seen.update([m.data]), concurrency=2)
        with running(worker):
            for n in range(60):
                if n % 6 == 0:
                    network.cut()
                there.send(n, id=str(n))
            wait_until(lambda: rest(consumer) == (0, 0), 120)
    assert set(seen) == set(range(60))
    assert stream.info().messages == 60
    s = worker.stats
    assert s.received == s.acked + s.nacked + s.released + s.lost + s.settled
    assert s.acked <= 60 <= s.acked + s.lost


def test_a_token_that_is_revoked_ends_the_worker(server: Replica, stream: headgate.Stream) -> None:
    """It would go on for ever otherwise, and nobody would see why."""
    stream.consumer("c", create=True)
    token = server.new_token("consume")
    with headgate.connect(server.url, token=token) as hg:
        worker = hg.stream(stream.name).consumer("c").worker(lambda m: None)
        with pytest.raises(headgate.errors.NotAllowed, match="token"), running(worker):
            stream.send({})
            wait_until(lambda: worker.stats.acked == 1)
            with server.client() as admin:
                newest = admin.get("/api/tokens").json()["data"][0]
                assert admin.delete(f"/api/tokens/{newest['id']}").is_success
            wait_until(lambda: worker._loop is None, 60)


def test_the_database_restarts(stream: headgate.Stream, url: str) -> None:
    """Every connection of the server is cut, again and again: its calls fail, and the worker goes on."""
    consumer = stream.consumer("c", create=True, ack_wait=1)
    seen: set[int] = set()

    @consumer.worker(concurrency=2)
    def handle(m: headgate.Message) -> None:
        seen.add(m.data)

    with running(handle):
        for n in range(2):
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid()"
                )
            batch = [headgate.Outgoing(10 * n + i, id=f"{n} {i}") for i in range(10)]
            stream.send_batch(batch)  # with ids, so that it is repeated
            wait_until(lambda n=n: seen >= set(range(10 * n + 10)))
        wait_until(lambda: rest(consumer) == (0, 0))
    assert seen == set(range(20))
