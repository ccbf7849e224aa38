"""Workers of several consumers keep what a worker promises: order, retries, stopping, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import headgate
from support.calls import Db, facts, receive
from support.clients import running, until
from support.waiting import wait_until
from worker.test_priorities import is_done, send


class TestPromises:
    def test_every_message_of_each_once_by_its_own_handler(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(urgent, 300)
        send(bulk, 200)
        seen: dict[str, list[int]] = defaultdict(list)
        through: list[str] = []

        def layer(m: headgate.Message, call_next: Any) -> Any:
            through.append(m.consumer)
            return call_next(m)

        worker = hg.worker(
            {urgent: 2, bulk: 1},
            {urgent: lambda m: seen["u"].append(m.data), bulk: lambda m: seen["b"].append(m.data)},
            middleware=[layer],
        )
        with running(worker):
            wait_until(lambda: is_done(db, urgent, bulk))
        assert sorted(seen["u"]) == list(range(300))
        assert sorted(seen["b"]) == list(range(200))
        assert Counter(through) == {"urgent": 300, "bulk": 200}
        assert (worker.stats_of(urgent).acked, worker.stats_of(bulk).acked, worker.stats.acked) == (300, 200, 500)
        assert (worker.stats.received, worker.stats.running, worker.stats.waiting) == (500, 0, 0)

    def test_order_by_key_is_kept_through_failures(self, db: Db, hg: headgate.Headgate) -> None:
        first = hg.stream("orders", create=True, lanes=4).consumer("a", create=True, order="key", backoff=0.02)
        second = hg.stream("orders").consumer("b", create=True, order="key", backoff=0.02)
        hg.stream("orders").send_batch([(f"k{n % 7}", n) for n in range(210)])
        done: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        busy: set[tuple[str, str | None]] = set()
        overlaps: list[Any] = []
        lock = threading.Lock()

        def handle(m: headgate.Message) -> None:
            place = (m.consumer, m.key)
            with lock:
                if place in busy:
                    overlaps.append(place)
                busy.add(place)
            time.sleep(0.001)
            with lock:
                busy.discard(place)
                if m.data % 31 == 0 and m.attempt == 1:
                    raise ValueError("once")
                done[place].append(m.data)

        worker = hg.worker({first: 5, second: 1}, handle, concurrency=6, batch_size=30)
        with running(worker):
            wait_until(lambda: is_done(db, first, second))
        assert not overlaps
        assert len(done) == 14
        for (_, key), numbers in done.items():
            assert numbers == [n for n in range(210) if f"k{n % 7}" == key]
        assert worker.stats_of(first).nacked == worker.stats_of(second).nacked == 7

    def test_order_by_key_is_kept_when_workers_hand_back_to_each_other(self, db: Db, hg: headgate.Headgate) -> None:
        high = hg.stream("orders", create=True, lanes=4).consumer("high", create=True, order="key")
        low = hg.stream("reports", create=True, lanes=4).consumer("low", create=True, order="key")
        done: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        lock = threading.Lock()
        go = threading.Event()

        def handle(m: headgate.Message) -> None:
            assert go.wait(60)
            with lock:
                done[m.consumer, m.key].append(m.data)
            time.sleep(0.001)

        workers = [hg.worker({high: 20, low: 1}, handle, concurrency=2, prefetch=60) for _ in range(2)]
        for n in range(3):
            hg.stream("reports").send_batch([(f"k{i}", n) for i in range(100)])
        with running(workers[0]), running(workers[1]):
            wait_until(lambda: all(worker.stats_of(low).waiting > 40 for worker in workers))
            for n in range(3):
                hg.stream("orders").send_batch([(f"k{i}", n) for i in range(100)])
            wait_until(lambda: all(worker.stats_of(low).released > 20 for worker in workers))
            go.set()
            wait_until(lambda: is_done(db, high, low), 60)
        assert len(done) == 200
        assert {tuple(numbers) for numbers in done.values()} == {(0, 1, 2)}
        assert [n for worker in workers for n in (worker.stats.nacked, worker.stats.lost)] == [0] * 4

    def test_deadlines_are_extended_for_each(self, db: Db, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        short = orders.consumer("short", create=True, ack_wait=0.6)
        long = orders.consumer("long", create=True, ack_wait=30)
        orders.send_batch(list("ab"))
        attempts: list[int] = []

        @hg.worker({short: 1, long: 9}, concurrency=4)
        def handle(m: headgate.Message) -> None:
            attempts.append(m.attempt)
            time.sleep(1.5)

        with running(handle):
            wait_until(lambda: is_done(db, short, long))
        assert attempts == [1] * 4
        assert handle.stats.lost == 0

    def test_stopping_hands_back_what_each_has_not_begun(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(urgent, 10)
        send(bulk, 10)
        go = threading.Event()
        worker = hg.worker({urgent: 1, bulk: 1}, lambda m: go.wait(60), concurrency=2, prefetch=20)
        with running(worker):
            wait_until(lambda: worker.stats.running == 2 and worker.stats.received >= 10)
            worker.stop()
            wait_until(lambda: sum(facts(db, c.stream, c.name)["in_flight"] for c in (urgent, bulk)) == 2)
            go.set()
        assert worker.stats.acked == 2
        assert worker.stats.released == worker.stats.received - 2
        again = [*receive(db, "orders", "urgent", 20), *receive(db, "reports", "bulk", 20)]
        assert [m.attempt for m in again] == [1] * 18

    async def test_a_run_that_is_cancelled(self, db: Db, ahg: headgate.AsyncHeadgate) -> None:
        streams = [await ahg.stream(name, create=True) for name in ("orders", "reports")]
        consumers = [await stream.consumer("c", create=True) for stream in streams]
        for stream in streams:
            await stream.send_batch(list("abc"))

        @ahg.worker({consumers[0]: 2, consumers[1]: 1}, concurrency=1, prefetch=6)
        async def handle(m: headgate.AsyncMessage) -> None:
            await asyncio.sleep(60)

        task = asyncio.create_task(handle.run())
        await until(lambda: handle.stats.running == 1 and handle.stats.received >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [facts(db, name, "c")["in_flight"] for name in ("orders", "reports")] == [0, 0]

    def test_connections_are_cut(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        seen = Counter[tuple[str, int]]()
        worker = hg.worker({urgent: 3, bulk: 1}, lambda m: seen.update([(m.consumer, m.seq)]))
        with running(worker):
            for cuts in range(2):
                send(urgent, 50)
                send(bulk, 50)
                wait_until(lambda n=cuts: len(seen) == 100 * (n + 1))
                db.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headgate' "
                    "and datname = current_database() and query like '%%receive_%%'",
                    [],
                )
                wait_until(lambda n=cuts: worker.stats.reconnects > n)
            wait_until(lambda: is_done(db, urgent, bulk))
        assert worker.stats_of(bulk).reconnects == worker.stats.reconnects

    def test_two_connections_for_all(self, db: Db, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        consumers = [orders.consumer(f"c{n}", create=True) for n in range(12)]
        orders.send_batch(list(range(20)))
        hg.pool.check()
        before = {pid for (pid,) in db.execute("select pid from pg_stat_activity where application_name = 'headgate'")}
        worker = hg.worker({c: n + 1 for n, c in enumerate(consumers)}, lambda m: None)
        with running(worker):
            wait_until(lambda: is_done(db, *consumers))
            now = {pid for (pid,) in db.execute("select pid from pg_stat_activity where application_name = 'headgate' "
                                                "and datname = current_database()")}  # fmt: skip
        assert len(now - before) <= 2
        assert worker.stats.acked == 240

    def test_it_can_run_again_and_is_called_in_tests(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        worker = hg.worker({urgent: 2, bulk: 1}, {urgent: lambda m: "high", bulk: lambda m: "low"})
        for n in (1, 2):
            send(urgent, 1)
            send(bulk, 1)
            with running(worker):
                wait_until(lambda n=n: worker.stats.acked == 2 * n)
        send(bulk, 1)
        [m] = bulk.receive(wait=5)
        assert worker(m) == "low"
        assert (m.stream, m.consumer) == ("reports", "bulk")
        assert "urgent" in repr(worker)
        assert "bulk" in repr(worker)


PROGRAM = """
import sys, time, headgate
hg = headgate.connect(sys.argv[1])
a, b = hg.stream("orders").consumer("urgent"), hg.stream("reports").consumer("bulk")
@hg.worker({a: 3, b: 1}, concurrency=2, prefetch=16)
def handle(m):
    print(m.consumer, m.seq, flush=True)
    time.sleep(60 if sys.argv[2] == "long" else 0.3)
handle.run()
print("end", handle.stats.acked, handle.stats.released, flush=True)
"""


class TestProcesses:
    def program(self, url: str, how: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, url, how], stdout=subprocess.PIPE, text=True)

    def test_sigterm_hands_back(
        self, db: Db, database_url: str, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(urgent, 30)
        send(bulk, 30)
        process = self.program(database_url, "short")
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() != "" for _ in range(4)] == [True] * 4
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert process.stdout.read().splitlines()[-1].startswith("end")
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for c in (urgent, bulk):
            assert facts(db, c.stream, c.name)["in_flight"] == 0
            assert {m.attempt for m in receive(db, c.stream, c.name, 30)} == {1}

    def test_what_a_killed_one_had_comes_again(
        self, db: Db, hg: headgate.Headgate, database_url: str, orders: headgate.Stream, tmp_path: Path
    ) -> None:
        a = orders.consumer("urgent", create=True, ack_wait=2)
        b = hg.stream("reports", create=True).consumer("bulk", create=True, ack_wait=2)
        send(a, 20)
        send(b, 20)
        process = self.program(database_url, "long")
        assert process.stdout is not None
        assert [process.stdout.readline() != "" for _ in range(2)] == [True] * 2
        wait_until(lambda: all(facts(db, c.stream, c.name)["in_flight"] > 0 for c in (a, b)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        seen: dict[str, list[int]] = defaultdict(list)
        with running(hg.worker({a: 1, b: 1}, lambda m: seen[m.consumer].append(m.data))):
            wait_until(lambda: is_done(db, a, b))
        assert {name: sorted(numbers) for name, numbers in seen.items()} == {
            "urgent": list(range(20)),
            "bulk": list(range(20)),
        }
