"""Workers: stopping, signals, processes that end, and a database that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from support.calls import Db, column, facts, receive, value
from support.clients import is_done, running, running_async, until
from support.postgres import NewCluster
from support.waiting import wait_until


class TestStopping:
    def test_release_hands_back_without_an_attempt(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list("abc"), key="k")
        consumer = orders.consumer("c", create=True, order="key", max_deliver=1)
        a, b, c = consumer.receive(3)
        assert consumer.release([b]) == headgate.types.Settled(1, 0)  # c goes with it: it may not overtake
        assert column(db, "select seq from headgate.parked_messages where reason = 'released' order by 1") == [
            b.seq,
            c.seq,
        ]
        assert consumer.receive(3) == []
        assert consumer.release([b, c]) == headgate.types.Settled(0, 2)
        assert a.ack()
        wait_until(
            lambda: (again := consumer.receive(3)) and [(m.data, m.attempt) for m in again] == [("b", 1), ("c", 1)]
        )

    def test_a_whole_delivery_is_released(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list("abc"), key="k")
        consumer = orders.consumer("c", create=True)
        messages = consumer.receive(3)
        messages[0].nack(delay=0)
        messages = [*messages[1:], *consumer.receive(3)]
        deliveries = list(dict.fromkeys(m.delivery for m in messages))
        assert consumer.release(deliveries) == headgate.types.Settled(3, 0)
        assert sorted((m.data, m.attempt) for m in consumer.receive(3)) == [("a", 2), ("b", 1), ("c", 1)]
        with pytest.raises(headgate.errors.InvalidAckId):
            consumer.release(["no"])

    def test_a_consumer_role_may_release(self, db: Db) -> None:
        query = "select has_function_privilege(%s, 'headgate.release(text, text, text[])', 'execute')"
        assert value(db, query, "headgate_consumer")
        assert not value(db, query, "headgate_producer")

    def test_what_runs_is_acked_and_the_rest_handed_back(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list(range(20)), key="k")
        go = threading.Event()
        worker = orders.consumer("c", create=True).worker(lambda m: go.wait(30), concurrency=2, prefetch=20)
        with running(worker):
            wait_until(lambda: worker.stats.running == 2 and worker.stats.received == 20)
            worker.stop()
            wait_until(lambda: facts(db, "orders", "c")["parked"] == 18)
            assert facts(db, "orders", "c")["in_flight"] == 2
            go.set()
        assert (worker.stats.acked, worker.stats.released, worker.stats.nacked) == (2, 18, 0)
        assert [m.attempt for m in receive(db, "orders", "c", 20)] == [1] * 18

    async def test_what_does_not_finish_in_time_is_cancelled(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send_batch(list("ab"))
        started: list[str] = []

        @(await aorders.consumer("c", create=True)).worker(concurrency=1, prefetch=2, grace=0.05)
        async def handle(m: headgate.AsyncMessage) -> None:
            started.append(m.data)
            await asyncio.sleep(60)

        async with running_async(handle):
            await until(lambda: started and handle.stats.received == 2)
        assert (handle.stats.nacked, handle.stats.released) == (1, 1)
        assert sorted(m.attempt for m in receive(db, "orders", "c", 20)) == [1, 2]

    def test_a_thread_that_does_not_finish_in_time_is_left(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")
        go = threading.Event()
        worker = orders.consumer("c", create=True).worker(lambda m: go.wait(30), grace=0.05)
        with running(worker):
            wait_until(lambda: worker.stats.running == 1)
        assert worker.stats.nacked == 1
        go.set()
        wait_until(lambda: worker.stats.running == 0)
        assert worker.stats.acked == 0

    async def test_a_run_that_is_cancelled_hands_everything_back(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send_batch(list("abc"))

        @(await aorders.consumer("c", create=True)).worker(concurrency=1, prefetch=3)
        async def handle(m: headgate.AsyncMessage) -> None:
            await asyncio.sleep(60)

        task = asyncio.create_task(handle.run())
        await until(lambda: handle.stats.running == 1 and handle.stats.received == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert facts(db, "orders", "c")["in_flight"] == 0

    def test_it_can_run_again_but_not_twice_at_once(self, db: Db, orders: headgate.Stream) -> None:
        worker = orders.consumer("c", create=True).worker(lambda m: None)
        for n in (1, 2):
            orders.send("a")
            with running(worker):
                wait_until(lambda n=n: worker.stats.acked == n)
                with pytest.raises(headgate.Error, match="already"):
                    worker.run()
        worker.stop()
        worker.run()  # it was told to stop before

    async def test_run_in_a_running_loop_says_what_to_do(self, orders: headgate.Stream) -> None:
        """As in a notebook."""
        worker = orders.consumer("c", create=True).worker(print)
        with pytest.raises(headgate.Error, match="running event loop") as raised:
            worker.run()
        assert "threading.Thread(target=worker.run)" in str(raised.value.hint)

    def test_a_fault_hands_everything_back(self, db: Db, orders: headgate.Stream) -> None:
        """Whatever ends the worker: nobody waits for the deadlines of what it had."""
        orders.send_batch(list(range(20)), key="k")
        worker = orders.consumer("c", create=True).worker(lambda m: time.sleep(0.1), concurrency=1, prefetch=20)

        async def fault(*_: object) -> None:
            raise RuntimeError("a fault")

        def break_it() -> None:
            wait_until(lambda: worker.stats.running == 1 and worker.stats.received == 20)
            worker._subscriptions[0].note_timings = fault  # type: ignore[method-assign]

        thread = threading.Thread(target=break_it)
        thread.start()
        with pytest.raises(RuntimeError, match="a fault"):
            worker.run()
        thread.join()
        assert facts(db, "orders", "c")["in_flight"] == 0
        s = worker.stats
        assert s.received == s.acked + s.nacked + s.released

    async def test_signals_stop_all_workers_and_are_given_back(self, aorders: headgate.AsyncStream) -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        consumer = await aorders.consumer("c", create=True)
        seen: list[int] = []
        workers = [consumer.worker(lambda m: seen.append(m.seq)) for _ in range(2)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        await aorders.send("a")
        await until(lambda: seen)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    def test_without_signals(self, orders: headgate.Stream) -> None:
        before = signal.getsignal(signal.SIGTERM)
        found: list[Any] = []

        @orders.consumer("c", create=True).worker(signals=False)
        def handle(m: headgate.Message) -> None:
            found.append(signal.getsignal(signal.SIGTERM))
            handle.stop()

        orders.send("a")
        handle.run()
        assert found == [before]


PROGRAM = """
import sys, time, pathlib, headgate
url, go = sys.argv[1], pathlib.Path(sys.argv[2])
hg = headgate.connect(url)
@hg.stream("orders").consumer("c").worker(concurrency=2, prefetch=20)
def handle(m):
    print(m.seq, flush=True)
    while not go.exists():
        time.sleep(0.01)
handle.run()
print("end", handle.stats.acked, flush=True)
"""


class TestProcesses:
    @pytest.fixture
    def program(self, database_url: str, orders: headgate.Stream, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        """A worker of 20 messages in a process of its own, with two handlers that wait for `tmp_path / "go"`."""
        orders.consumer("c", create=True, ack_wait=2)
        orders.send_batch(list(range(20)), key="k")
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database_url, str(tmp_path / "go")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert [process.stdout.readline() != "" for _ in range(2)] == [True, True]
        yield process
        process.kill()
        process.wait()
        process.stdout.close()

    def test_sigterm(self, db: Db, program: subprocess.Popen[str], tmp_path: Path) -> None:
        wait_until(lambda: facts(db, "orders", "c")["in_flight"] == 20)
        program.terminate()
        wait_until(lambda: facts(db, "orders", "c")["parked"] == 18)
        assert facts(db, "orders", "c")["in_flight"] == 2
        (tmp_path / "go").touch()
        assert program.wait(30) == 0
        assert program.stdout is not None
        assert program.stdout.read() == "end 2\n"
        assert [m.attempt for m in receive(db, "orders", "c", 20)] == [1] * 18

    def test_a_second_signal_does_not_wait(self, db: Db, program: subprocess.Popen[str]) -> None:
        program.send_signal(signal.SIGINT)
        wait_until(lambda: facts(db, "orders", "c")["parked"] == 18)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0
        assert Counter(m.attempt for m in receive(db, "orders", "c", 20)) == {1: 18, 2: 2}

    def test_kill(self, db: Db, orders: headgate.Stream, program: subprocess.Popen[str]) -> None:
        wait_until(lambda: facts(db, "orders", "c")["in_flight"] == 20)
        program.kill()
        program.wait()
        attempts: list[int] = []
        with running(orders.consumer("c").worker(lambda m: attempts.append(m.attempt))):
            wait_until(lambda: is_done(db))
        assert attempts == [2] * 20


class TestDatabaseAway:
    def test_connections_are_cut(self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture) -> None:
        seen: Counter[int] = Counter()

        @orders.consumer("c", create=True).worker()
        def handle(m: headgate.Message) -> None:
            seen[m.data] += 1

        sent = 0
        with running(handle):
            for cuts in range(3):
                orders.send_batch(list(range(sent, sent + 100)))
                sent += 100
                wait_until(lambda n=sent: len(seen) == n)
                db.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headgate' "
                    "and datname = current_database() and query like '%%receive_%%'",
                    [],
                )
                wait_until(lambda n=cuts: handle.stats.reconnects > n)
            wait_until(lambda: is_done(db))
        assert len(seen) == 300
        assert [r.levelname for r in caplog.records if r.getMessage() == "the database is away"] == ["WARNING"] * 3

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_a_restart(self, new_cluster: NewCluster, caplog: pytest.LogCaptureFixture, mode: Any) -> None:
        cluster = new_cluster()
        with headgate.connect(cluster.url(), migrate=True) as hg:
            orders = hg.stream("orders", create=True, lanes=4)
            orders.send_batch(list(range(10)))
            seen: Counter[int] = Counter()
            go = threading.Event()

            @orders.consumer("c", create=True).worker(concurrency=10)
            def handle(m: headgate.Message) -> None:
                seen[m.data] += 1
                go.wait(60)

            with running(handle):
                wait_until(lambda: len(seen) == 10)
                cluster.stop(mode)
                go.set()  # they finish while the database is away
                wait_until(lambda: handle.stats.running == 0 and "is away" in caplog.text)
                cluster.start()
                wait_until(lambda: handle.stats.acked >= 10, 60)
                with headgate.connect(cluster.url()) as again:
                    again.stream("orders").send_batch(list(range(10, 20)))
                    consumer = again.stream("orders").consumer("c")
                    wait_until(lambda: consumer.info().lag == 0 and handle.stats.waiting == 0)
            assert set(seen) == set(range(20))
            if mode == "fast":  # a crash forgets the last moments of a consumer's progress
                assert set(seen.values()) == {1}
            away = [r for r in caplog.records if r.getMessage() == "the database is away"]
            assert len(away) == 1

    def test_stopping_while_it_is_away(self, new_cluster: NewCluster) -> None:
        cluster = new_cluster()
        with headgate.connect(cluster.url(), migrate=True) as hg:
            worker = hg.stream("orders", create=True).consumer("c", create=True).worker(lambda m: None, grace=1)
            with running(worker):
                wait_until(lambda: worker._link is not None)
                cluster.stop("immediate")
                wait_until(lambda: worker._link is None)
            assert worker.stats.received == 0


MEMORY = """
import asyncio, sys, psutil, headgate
async def main(url, n):
    async with await headgate.connect_async(url) as hg:
        consumer = await (await hg.stream("orders")).consumer("c")
        seen = 0
        @consumer.worker(concurrency=8, batch_size=100)
        async def handle(m):
            nonlocal seen
            seen += 1
            if seen in (n // 10, n):
                print(psutil.Process().memory_info().rss // 1_000_000)
            if seen >= n:
                handle.stop()
        await handle.run()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


class TestMemory:
    @pytest.mark.parametrize("n", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
    def test_it_does_not_grow(self, database_url: str, orders: headgate.Stream, n: int) -> None:
        orders.consumer("c", create=True)
        for _ in range(n // 10_000):
            orders.send_batch(["x" * 100] * 10_000)
        answer = subprocess.run(
            [sys.executable, "-c", MEMORY, database_url, str(n)], stdout=subprocess.PIPE, text=True, timeout=600
        )
        early, late = map(int, answer.stdout.split())
        assert late < 120
        assert late - early < 15
