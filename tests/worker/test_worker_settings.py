"""Workers whose consumer's settings are changed while they run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

import headgate
from support.calls import Db, column, facts, value
from support.clients import is_done, running, running_async, until
from support.waiting import wait_until


class TestAckWait:
    def test_less_of_it_does_not_make_messages_come_twice(
        self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = orders.consumer("c", create=True, ack_wait=30)
        seen: Counter[int] = Counter()

        def handle(m: headgate.Message) -> None:
            seen[m.seq] += 1
            time.sleep(1.5)

        workers = [consumer.worker(handle, concurrency=2) for _ in range(2)]
        with running(workers[0]), running(workers[1]):
            wait_until(lambda: all(worker._link is not None for worker in workers))
            consumer.alter(ack_wait=0.4)
            sent = orders.send_batch(list("abcd"))  # at once: nobody has read the new setting
            wait_until(lambda: is_done(db))
        assert seen == Counter(sent)
        assert sum(worker.stats.acked for worker in workers) == 4
        assert sum(worker.stats.lost for worker in workers) == 0

    async def test_it_counts_within_seconds(self, db: Db, aorders: headgate.AsyncStream) -> None:
        consumer = await aorders.consumer("c", create=True, ack_wait=30)
        go = asyncio.Event()

        @consumer.worker(concurrency=100)
        async def handle(m: headgate.AsyncMessage) -> None:
            await go.wait()

        async with running_async(handle):
            await aorders.send(0)
            await until(lambda: handle.stats.running == 1)
            await consumer.alter(ack_wait=1)
            until_then = "select min(deadline - delivered_at) < '3 seconds' from headgate.deliveries"
            deadline = time.monotonic() + 10
            while not value(db, until_then):
                assert time.monotonic() < deadline
                await aorders.send(1)
                await asyncio.sleep(0.1)
            go.set()
            await until(lambda: is_done(db))
        assert (handle.stats.lost, handle.stats.nacked) == (0, 0)


class TestAccounts:
    def test_acks_that_come_too_late_are_not_acked(self, db: Db, orders: headgate.Stream) -> None:
        """The worker is away from its database, and another one has got the message."""
        consumer = orders.consumer("c", create=True, ack_wait=1)
        orders.send("a")
        go = threading.Event()
        worker = consumer.worker(lambda m: go.wait(30), concurrency=1)

        async def nothing(*_: object) -> None: ...

        with running(worker):
            wait_until(lambda: worker.stats.running == 1)
            worker._subscriptions[0].extend = nothing  # type: ignore[assignment]
            (taken,) = consumer.receive(1, wait=10)
            assert taken.attempt == 2
            go.set()
            wait_until(lambda: worker.stats.lost == 1)
            assert taken.ack()
        assert (worker.stats.received, worker.stats.acked) == (1, 0)


class TestLeaseTime:
    def test_less_of_it_moves_no_lanes(self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture) -> None:
        consumer = orders.consumer("c", create=True, leased=True, lease_time=3)
        seen: Counter[int] = Counter()
        lost: list[frozenset[int]] = []
        workers = [
            consumer.worker(lambda m: seen.update([m.seq]), on_lanes_lost=lost.append, concurrency=2) for _ in range(2)
        ]
        shares = "select cardinality(lanes) from headgate.workers where until > clock_timestamp() order by 1"
        with running(workers[0]):
            wait_until(lambda: column(db, shares) == [4])
            with running(workers[1]):
                wait_until(lambda: column(db, shares) == [2, 2])
                lost.clear()
                consumer.alter(lease_time=0.5)
                short = "select bool_and(until - seen_at < '1 second') from headgate.workers"
                wait_until(lambda: value(db, short), 10)
                total = 0
                end = time.monotonic() + 1.5  # three times the lease_time
                while time.monotonic() < end:
                    orders.send_batch([(f"k{n}", n) for n in range(8)])
                    total += 8
                    time.sleep(0.05)
                wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
                assert lost == []
                assert column(db, shares) == [2, 2]
        assert len(seen) == total
        assert set(seen.values()) == {1}
        assert "given up" not in caplog.text
