"""Workers of several consumers: shares by weight, who goes first, and that each keeps what a worker promises."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from typing import Any

import pytest

import headgate
from support.calls import Db, facts
from support.clients import running, running_async, until
from support.waiting import wait_until


def send(consumer: headgate.Consumer, count: int) -> None:
    consumer.hg.stream(consumer.stream).send_batch([(f"k{n % 20}", n) for n in range(count)])


def is_done(db: Db, *consumers: Any) -> bool:
    return all(facts(db, c.stream, c.name)["lag"] == 0 for c in consumers)


class TestShares:
    @pytest.mark.parametrize("seconds", [0.0, 0.004])
    def test_by_weight_while_all_are_busy(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer, seconds: float
    ) -> None:
        normal = hg.stream("orders").consumer("normal", create=True)
        send(urgent, 2000)  # of normal too: it is the same stream
        send(bulk, 2000)
        seen: list[str] = []

        @hg.worker({urgent: 6, normal: 3, bulk: 1}, concurrency=4, batch_size=50)
        def handle(m: headgate.Message) -> None:
            seen.append(m.consumer)
            time.sleep(seconds)

        with running(handle):
            wait_until(lambda: len(seen) >= 1500)
        shares = Counter(seen[300:1500])
        slack = 0.08 if seconds else 0.2  # of handlers that take no time, what is received is shared out, by batches
        assert shares["urgent"] / 1200 == pytest.approx(0.6, abs=slack)
        assert shares["normal"] / 1200 == pytest.approx(0.3, abs=slack)
        assert shares["bulk"] / 1200 == pytest.approx(0.1, abs=slack)
        assert shares["urgent"] > shares["normal"] > shares["bulk"] > 0

    async def test_of_tasks(self, db: Db, ahg: headgate.AsyncHeadgate, aorders: headgate.AsyncStream) -> None:
        high = await aorders.consumer("high", create=True)
        low = await aorders.consumer("low", create=True)
        await aorders.send_batch(list(range(3000)))
        seen: list[str] = []

        @ahg.worker({low: 1, high: 4}, concurrency=20)
        async def handle(m: headgate.AsyncMessage) -> None:
            seen.append(f"{m.stream}/{m.consumer}")
            await asyncio.sleep(0.01)

        async with running_async(handle):
            await until(lambda: len(seen) >= 2000)
        shares = Counter(seen[500:2000])
        assert shares["orders/high"] / 1500 == pytest.approx(0.8, abs=0.08)
        assert handle.stats.acked == handle.stats_of(high).acked + handle.stats_of(low).acked

    def test_alone_it_has_all_handlers(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(bulk, 60)
        full = threading.Barrier(6, timeout=30)  # it takes six at once to get through

        with running(hg.worker({urgent: 100, bulk: 1}, lambda m: full.wait(), concurrency=6)):
            wait_until(lambda: is_done(db, bulk))

    def test_long_ones_of_low_weight_leave_handlers_to_the_others(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        """By time: were handlers given out by count, every tenth would be of these, and all would be taken by them."""
        send(urgent, 1500)
        began: list[str] = []

        def quick(m: headgate.Message) -> None:
            if len(began) == 100:
                send(bulk, 1000)
            began.append("urgent")
            time.sleep(0.002)

        def slow(m: headgate.Message) -> None:
            began.append("bulk")
            time.sleep(0.2)

        with running(hg.worker({urgent: 9, bulk: 1}, {urgent: quick, bulk: slow}, concurrency=4, grace=1)):
            wait_until(lambda: is_done(db, urgent))
            wait_until(lambda: "bulk" in began)
        last = max(n for n, name in enumerate(began) if name == "urgent")
        assert began[:last].count("bulk") < 60  # its share is 2; more when the others were being received

    def test_an_idle_one_is_asked_seldom(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        asked = Counter[str]()
        worker = hg.worker({urgent: 8, bulk: 1}, lambda m: time.sleep(0.01), concurrency=2)
        send(bulk, 200)
        for subscription in worker._subscriptions:

            def counted(
                link: Any, wanted: int, subscription: Any = subscription, call: Any = subscription.receive
            ) -> Any:
                asked[subscription.consumer.name] += 1
                return call(link, wanted)

            subscription.receive = counted  # type: ignore[method-assign]
        began = time.monotonic()
        with running(worker):
            wait_until(lambda: is_done(db, bulk))
        assert asked["urgent"] <= 20 + 12 * (time.monotonic() - began)


class TestFirst:
    def test_a_high_one_does_not_wait_behind_what_low_ones_have_claimed(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(bulk, 3000)
        waits: list[float] = []

        def low(m: headgate.Message) -> None:
            time.sleep(0.02)

        def high(m: headgate.Message) -> None:
            waits.append(time.time() - m.data)

        worker = hg.worker({urgent: 8, bulk: 1}, {urgent: high, bulk: low}, concurrency=4, prefetch=200)
        with running(worker):
            wait_until(lambda: worker.stats_of(bulk).waiting >= 100)  # more than a second's work
            for n in range(10):
                hg.stream("orders").send(time.time())
                wait_until(lambda n=n: len(waits) > n)
            assert worker.stats_of(bulk).waiting > 0
        assert sorted(waits)[5] < 0.35  # what a poll takes (0.1 s), a handler (0.02 s), and a slow machine

    def test_it_gets_the_next_handler_when_all_are_taken_for_long(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        """Nothing is claimed ahead then, so the high one must be asked before the low one."""
        send(bulk, 50)
        started: list[tuple[str, int]] = []
        free = threading.Semaphore(0)

        def handle(m: headgate.Message) -> None:
            started.append((m.consumer, m.seq))
            assert free.acquire(timeout=60)

        worker = hg.worker({urgent: 5, bulk: 1}, handle, concurrency=2)
        with running(worker):
            wait_until(lambda: len(started) == 2)
            free.release()  # now it knows that they take long
            time.sleep(1.2)
            free.release()
            wait_until(lambda: len(started) == 4)
            send(urgent, 20)
            before = len(started)
            for n in range(12):
                time.sleep(0.15)
                free.release()
                wait_until(lambda n=n: len(started) > before + n)
            order = [name for name, _ in started[before:]]
            for _ in range(200):
                free.release()
            wait_until(lambda: is_done(db, urgent, bulk))
        assert order[0] == "urgent"
        assert order.count("urgent") >= 8

    def test_none_is_starved_where_nothing_is_claimed_ahead(
        self,
        db: Db,
        hg: headgate.Headgate,
        urgent: headgate.Consumer,
        bulk: headgate.Consumer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Then whoever is asked first has the handler: that goes by turns too."""
        monkeypatch.setattr("headgate.worker.turns.AHEAD_SECONDS", 0.001)  # so that 20 ms are long
        send(urgent, 200)
        send(bulk, 200)
        seen: list[str] = []
        ahead: list[int] = []

        def handle(m: headgate.Message) -> None:
            seen.append(m.consumer)
            ahead.append(worker.stats.waiting)
            time.sleep(0.02)

        worker = hg.worker({urgent: 3, bulk: 1}, handle, concurrency=1)
        with running(worker):
            wait_until(lambda: len(seen) >= 90)
        shares = Counter(seen[10:90])
        assert shares["bulk"] == pytest.approx(20, abs=6)
        assert sorted(ahead)[45] <= 1

    def test_what_waits_is_handed_back_when_another_comes(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        """So that other workers can have it: it would wait here far longer than when it was claimed."""
        send(bulk, 200)
        go = threading.Event()
        worker = hg.worker({urgent: 9, bulk: 1}, lambda m: go.wait(60), concurrency=2, prefetch=100)
        with running(worker):
            wait_until(lambda: worker.stats_of(bulk).received == 100)
            send(urgent, 200)
            wait_until(lambda: worker.stats_of(bulk).released > 0)
            wait_until(lambda: worker.stats_of(bulk).waiting <= 12)
            assert worker.stats_of(bulk).released >= 80
            assert facts(db, "reports", "bulk")["parked"] >= 80
            go.set()
            wait_until(lambda: is_done(db, urgent, bulk))
        assert worker.stats_of(bulk).acked == 200
        assert {n for c in (urgent, bulk) for n in (worker.stats_of(c).nacked, worker.stats_of(c).lost)} == {0}

    @pytest.mark.parametrize(("weight", "high", "low"), [(8, 0.01, 0.01), (1, 0.001, 0.3), (8, 0.01, 0.5)])
    def test_what_is_claimed_is_handled(
        self,
        db: Db,
        hg: headgate.Headgate,
        urgent: headgate.Consumer,
        bulk: headgate.Consumer,
        weight: float,
        high: float,
        low: float,
    ) -> None:
        """Not handed back, to be claimed again."""
        send(urgent, 5000)
        send(bulk, 1000)
        handlers = {urgent: lambda m: time.sleep(high), bulk: lambda m: time.sleep(low)}
        worker = hg.worker({urgent: weight, bulk: 1}, handlers, concurrency=4)
        with running(worker):
            wait_until(lambda: worker.stats_of(urgent).acked >= 500 and worker.stats_of(bulk).acked >= 4)
            stats = worker.stats
        assert stats.released <= 20 + stats.acked * 0.05

    def test_little_is_handed_back_to_one_that_comes_and_goes(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        """It is reckoned with for a while, so that what was handed back is not claimed again at once."""
        send(bulk, 5000)
        worker = hg.worker({urgent: 8, bulk: 1}, lambda m: time.sleep(0.01), concurrency=4)
        with running(worker):
            wait_until(lambda: worker.stats_of(bulk).waiting >= 100)
            for n in range(1, 5):
                send(urgent, 20)
                wait_until(lambda n=n: worker.stats_of(urgent).acked == 20 * n)
                acked = worker.stats_of(bulk).acked
                wait_until(lambda acked=acked: worker.stats_of(bulk).acked >= acked + 250)  # more than half a second
            stats = worker.stats
        assert stats.released <= 200  # when it came first

    def test_others_can_have_the_high_ones_while_its_handlers_are_taken(
        self, db: Db, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer
    ) -> None:
        send(bulk, 2)
        go = threading.Event()
        worker = hg.worker({urgent: 8, bulk: 1}, lambda m: go.wait(60), concurrency=2)
        with running(worker):
            wait_until(lambda: worker.stats_of(bulk).running == 2)
            send(urgent, 1)
            [m] = urgent.receive(10, wait=30)
            assert m.ack()
            go.set()
            wait_until(lambda: is_done(db, bulk))
        assert worker.stats_of(urgent).received == 0


class TestRefused:
    @pytest.mark.parametrize("weight", [0, -1, 0.0, math.nan, math.inf, -math.inf, True, "2", None, 1001, 1e-300])
    def test_weights(self, hg: headgate.Headgate, orders: headgate.Stream, weight: Any) -> None:
        a, b = orders.consumer("a", create=True), orders.consumer("b", create=True)
        with pytest.raises(headgate.errors.InvalidArgument, match=r'weight.*consumer "b" of stream "orders"') as raised:
            hg.worker({a: 1, b: weight}, lambda m: None)
        assert "0.001 to 1000" in str(raised.value.hint)

    def test_consumers(
        self, hg: headgate.Headgate, orders: headgate.Stream, database_url: str, urgent: headgate.Consumer
    ) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="no consumers"):
            hg.worker({}, lambda m: None)
        with pytest.raises(headgate.errors.InvalidArgument, match="twice"):
            hg.worker({urgent: 1, orders.consumer("urgent"): 2}, lambda m: None)
        for wrong in ([urgent], {"urgent": 1}, None, {urgent: 1, orders: 2}):
            with pytest.raises(headgate.errors.InvalidArgument, match="is not possible"):
                hg.worker(wrong, lambda m: None)  # type: ignore[call-overload]
        with headgate.connect(database_url) as other:
            theirs = other.stream("orders").consumer("other", create=True)
            for consumers in ({urgent: 1, theirs: 1}, {theirs: 1}):
                with pytest.raises(headgate.errors.InvalidArgument, match="another client"):
                    hg.worker(consumers, lambda m: None)
        with pytest.raises(headgate.errors.InvalidArgument, match="is not one of this worker's"):
            hg.worker({urgent: 1}, lambda m: None).stats_of(orders.consumer("other"))

    def test_leases(self, hg: headgate.Headgate, orders: headgate.Stream, urgent: headgate.Consumer) -> None:
        leased = orders.consumer("leased", create=True, leased=True)
        with pytest.raises(headgate.errors.InvalidArgument, match='"leased" cannot be leased') as raised:
            hg.worker({urgent: 1, leased: 1}, lambda m: None)
        assert "worker of its own" in str(raised.value.hint)
        plain = orders.consumer("plain", create=True)
        for options in ({"leased": True}, {"on_lanes_gained": print}, {"on_lanes_lost": print}):
            with pytest.raises(headgate.errors.InvalidArgument, match="cannot be leased"):
                hg.worker({urgent: 1, plain: 1}, lambda m: None, **options)  # type: ignore[call-overload]
        worker = hg.worker({urgent: 1, plain: 1}, lambda m: None)
        plain.drop()
        orders.consumer("plain", create=True, leased=True)
        with pytest.raises(headgate.errors.InvalidArgument, match="cannot be leased"):
            worker.run()

    def test_handlers(self, hg: headgate.Headgate, urgent: headgate.Consumer, bulk: headgate.Consumer) -> None:
        async def coroutine(m: Any) -> None: ...

        def plain(m: Any) -> None: ...

        weights = {urgent: 1.0, bulk: 2.0}
        with pytest.raises(headgate.errors.InvalidArgument, match="not of the same consumers"):
            hg.worker(weights, {urgent: plain})
        with pytest.raises(headgate.errors.InvalidArgument, match="not of one kind"):
            hg.worker(weights, {urgent: plain, bulk: coroutine})
        with pytest.raises(headgate.errors.InvalidArgument, match="coroutine"):
            hg.worker(weights, coroutine)
        with pytest.raises(headgate.errors.InvalidArgument, match="not a handler"):
            hg.worker(weights, {urgent: plain, bulk: "plain"})  # type: ignore[dict-item]
        with pytest.raises(headgate.errors.InvalidArgument, match="concurrency"):
            hg.worker(weights, plain, concurrency=0)

    async def test_a_sync_consumer_of_an_async_worker(
        self, ahg: headgate.AsyncHeadgate, hg: headgate.Headgate, urgent: headgate.Consumer
    ) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="not possible") as raised:
            ahg.worker({urgent: 1}, lambda m: None)  # type: ignore[dict-item]
        assert "AsyncConsumer" in str(raised.value.hint)
