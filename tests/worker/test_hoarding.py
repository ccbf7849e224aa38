"""Workers hold no messages that they do not begin, and handlers that never end hold up no others."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import headgate
from support.calls import Db, facts
from support.clients import is_done, running, running_async, until
from support.waiting import wait_until


class TestClaimedAhead:
    @pytest.mark.parametrize("order", ["none", "key"])
    async def test_what_waits_goes_to_another_worker(
        self, db: Db, aorders: headgate.AsyncStream, order: headgate.Order
    ) -> None:
        consumer = await aorders.consumer("c", create=True, order=order)
        await aorders.send_batch([(f"k{n}", n) for n in range(400)])
        go = asyncio.Event()
        begun: list[tuple[str, int]] = []

        def worker(name: str, concurrency: int) -> headgate.AsyncWorker:
            async def handle(m: headgate.AsyncMessage) -> None:
                begun.append((name, m.data))
                if m.data >= 300:  # after fast ones, of which many are claimed at a time
                    await go.wait()

            return consumer.worker(handle, concurrency=concurrency)

        one, two = worker("one", 2), worker("two", 200)
        async with running_async(one):
            await until(lambda: sum(n >= 300 for _, n in begun) == 2)
            async with running_async(two):
                await until(lambda: len(begun) == 400)
                assert len({n for _, n in begun}) == 400
                assert one.stats.waiting == 0
                go.set()
                await until(lambda: is_done(db))
        assert one.stats.received == one.stats.acked + one.stats.released

    async def test_of_several_consumers(
        self, db: Db, ahg: headgate.AsyncHeadgate, aorders: headgate.AsyncStream
    ) -> None:
        a = await aorders.consumer("a", create=True)
        b = await aorders.consumer("b", create=True)
        go = asyncio.Event()
        begun: list[tuple[str, int]] = []

        async def handle(m: headgate.AsyncMessage) -> None:
            begun.append((m.consumer, m.data))
            if m.data >= 300:
                await go.wait()

        await aorders.send_batch([(f"k{n}", n) for n in range(400)])
        one, two = ahg.worker({a: 1, b: 2}, handle, concurrency=2), ahg.worker({a: 1, b: 2}, handle, concurrency=300)
        async with running_async(one):
            await until(lambda: sum(n >= 300 for _, n in begun) == 2)
            async with running_async(two):
                await until(lambda: len(begun) == 800)
                go.set()
                await until(lambda: is_done(db, "a") and is_done(db, "b"))

    def test_a_pause_after_fast_ones_is_no_reason_to_stop_claiming(self, db: Db, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        seen: list[int] = []

        @consumer.worker(concurrency=2)
        def handle(m: headgate.Message) -> None:
            seen.append(m.data)
            if m.data % 100 == 50:
                time.sleep(0.8)

        orders.send_batch(list(range(500)))
        with running(handle):
            wait_until(lambda: is_done(db))
        assert sorted(seen) == list(range(500))
        assert handle.stats.acked == 500


class TestThreadsThatHang:
    def test_others_get_the_messages_and_it_is_said(
        self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = orders.consumer("c", create=True)
        go = threading.Event()

        @consumer.worker(concurrency=2, timeout=0.1, retry_delay=60, prefetch=20)
        def hanging(m: headgate.Message) -> None:
            go.wait(60)

        orders.send_batch(list(range(20)))
        with running(hanging):
            wait_until(lambda: "every handler hangs" in caplog.text)
            wait_until(lambda: facts(db, "orders", "c")["in_flight"] == 0)
            assert (hanging.stats.nacked, hanging.stats.released) == (2, 18)
            seen: list[int] = []
            with running(consumer.worker(lambda m: seen.append(m.data))):
                wait_until(lambda: len(seen) == 18)
            go.set()  # they end after all, and it goes on
            wait_until(lambda: hanging.stats.running == 0)
            orders.send_batch(["x"])
            wait_until(lambda: hanging.stats.acked == 1)

    def test_in_order_nothing_of_the_key_runs_beside_it(
        self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders.send_batch([("k", 1), ("k", 2), ("other", 3)])
        consumer = orders.consumer("c", create=True, order="key", ack_wait=1)
        steps: list[tuple[str, int, int]] = []
        go = threading.Event()

        def handle(m: headgate.Message) -> None:
            steps.append(("begin", m.data, m.attempt))
            if m.data == 1 and m.attempt == 1:
                go.wait(30)
            steps.append(("end", m.data, m.attempt))

        workers = [consumer.worker(handle, concurrency=2, timeout=0.1, retry_delay=0) for _ in range(2)]
        with running(workers[0]), running(workers[1]):
            wait_until(lambda: "a handler does not end" in caplog.text)
            wait_until(lambda: ("end", 3, 1) in steps)
            time.sleep(1.5)  # longer than ack_wait: it is kept
            assert [step for step in steps if step[1] != 3] == [("begin", 1, 1)]
            go.set()
            wait_until(lambda: is_done(db))
        assert [step for step in steps if step[1] != 3] == [
            ("begin", 1, 1), ("end", 1, 1), ("begin", 1, 2), ("end", 1, 2), ("begin", 2, 1), ("end", 2, 1),
        ]  # fmt: skip
        assert sum(worker.stats.nacked for worker in workers) == 1


SLEEPER = """
import sys, json, time, headgate
hg = headgate.connect(sys.argv[1])
@hg.stream("orders").consumer("c").worker(concurrency=1, prefetch=20)
def handle(m):
    print(json.dumps([m.data, m.attempt]), file=open(sys.argv[2], "a"), flush=True)
    time.sleep(0.5)
handle.run()
"""


def test_one_that_slept_begins_nothing_past_its_deadline(
    db: Db, database_url: str, orders: headgate.Stream, tmp_path: Path
) -> None:
    consumer = orders.consumer("c", create=True, ack_wait=1)
    orders.send_batch(list(range(20)), key="k")
    file = tmp_path / "begun"

    def begun() -> list[list[int]]:
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, database_url, str(file)])
    try:
        wait_until(lambda: begun() and facts(db, "orders", "c")["in_flight"] == 20)
        sleeper.send_signal(signal.SIGSTOP)
        before = len(begun())
        taken: list[headgate.Message] = []
        wait_until(lambda: taken.extend(consumer.receive(100, wait=0.2)) or len(taken) >= 20)
        sleeper.send_signal(signal.SIGCONT)
        assert consumer.extend(taken, 60).settled == 20
        orders.send("new", key="k")
        wait_until(lambda: ["new", 1] in begun())
        assert len(begun()) == before + 1, "the new one, and nothing of what it had"
    finally:
        sleeper.send_signal(signal.SIGCONT)
        sleeper.terminate()
        sleeper.wait(30)
