"""Workers: failures and retries, deadlines, and order through both."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest

import headgate
from headgate.errors import error_text
from headgate.worker.options import default_delay
from support.calls import Db, facts, pass_time, receive, value
from support.clients import is_done, running, running_async, until
from support.waiting import wait_until


class TestFailures:
    def test_a_failed_message_comes_again(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")
        attempts: list[int] = []

        @orders.consumer("c", create=True).worker(retry_delay=0)
        def handle(m: headgate.Message) -> None:
            attempts.append(m.attempt)
            if m.attempt < 3:
                raise ValueError("boom")

        with running(handle):
            wait_until(lambda: is_done(db))
        assert attempts == [1, 2, 3]
        assert (handle.stats.nacked, handle.stats.acked) == (2, 1)

    @pytest.mark.parametrize(
        ("backoff", "options", "error", "expected"),
        [
            (None, {}, ValueError("boom"), (0.8, 1.2)),
            (None, {"retry_delay": 50}, ValueError("boom"), (50, 50)),
            (None, {"retry_delay": lambda attempt: 70 + attempt}, ValueError("boom"), (71, 71)),
            (None, {"retry_delay": lambda attempt: "soon"}, ValueError("boom"), (0.8, 1.2)),
            ([30], {}, ValueError("boom"), (30, 30)),
            ([30], {"retry_delay": 50}, ValueError("boom"), (50, 50)),
            ([30], {"retry_delay": 50}, headgate.Retry("boom", delay=90), (90, 90)),
            ([30], {}, headgate.Retry("boom"), (30, 30)),
        ],
    )
    def test_when_it_comes_again(
        self, db: Db, orders: headgate.Stream, backoff: Any, options: Any, error: Exception, expected: Any
    ) -> None:  # fmt: skip
        orders.send("a")

        @orders.consumer("c", create=True, backoff=backoff).worker(**options)
        def handle(m: headgate.Message) -> None:
            raise error

        with running(handle):
            wait_until(lambda: handle.stats.nacked == 1)
        delay, attempt, text = db.execute(
            "select extract(epoch from visible_at - parked_at)::float, attempt, last_error "
            "from headgate.parked_messages"
        ).fetchone()  # type: ignore[misc]
        assert expected[0] - 0.01 <= delay <= expected[1] + 0.01
        assert (attempt, text) == (1, f"{type(error).__name__}: boom")

    @pytest.mark.parametrize("delay", [1e10, float("inf"), float("nan"), -5, timedelta.max, "soon"])
    def test_a_delay_that_is_none_ends_nothing(self, db: Db, orders: headgate.Stream, delay: Any) -> None:
        orders.send_batch(["odd", "a", "b"])

        @orders.consumer("c", create=True).worker(prefetch=3)
        def handle(m: headgate.Message) -> None:
            if m.data == "odd" and m.attempt == 1:
                raise headgate.Retry(delay=delay)

        far = delay in (1e10, float("inf"), timedelta.max)
        with running(handle):
            wait_until(lambda: handle.stats.acked == 2 if far else is_done(db))
            wait_until(lambda: handle.stats.nacked == 1)
        seconds = value(
            db, "select extract(epoch from max(visible_at - parked_at))::float from headgate.parked_messages"
        )
        assert (seconds == pytest.approx(1e9)) if far else seconds is None
        assert handle.stats.received == (3 if far else 4)

    @pytest.mark.parametrize("delay", [float("nan"), -1])
    def test_such_an_option_is_refused(self, orders: headgate.Stream, delay: float) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="retry_delay"):
            orders.consumer("c", create=True).worker(print, retry_delay=delay)

    @pytest.mark.parametrize("kind", ["coroutine function", "lambda"])
    async def test_a_system_exit_is_a_failure_of_its_message(
        self, db: Db, aorders: headgate.AsyncStream, kind: str
    ) -> None:
        await aorders.send_batch(list("abc"))
        seen: list[str] = []

        async def coroutine(m: headgate.AsyncMessage) -> None:
            if m.data == "a" and m.attempt == 1:
                sys.exit(3)
            seen.append(m.data)

        handler: Any = coroutine if kind != "lambda" else lambda m: coroutine(m)
        worker = (await aorders.consumer("c", create=True)).worker(handler, retry_delay=0)
        async with running_async(worker):
            await until(lambda: is_done(db))
        assert sorted(seen) == ["a", "b", "c"]
        assert worker.stats.nacked == 1

    def test_after_max_deliver_it_is_a_dead_letter(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")
        consumer = orders.consumer("c", create=True, max_deliver=2)

        @consumer.worker(retry_delay=0)
        def handle(m: headgate.Message) -> None:
            raise ValueError("boom")

        with running(handle):
            wait_until(lambda: facts(db, "orders", "c")["dead"] == 1)
        (dead,) = consumer.dead_letters()
        assert (dead.attempts, dead.last_error) == (2, "ValueError: boom")

    def test_the_default_delay_and_the_error_text(self) -> None:
        assert [default_delay(n) for n in (1, 2, 3, 9, 10, 10**6)] == [1, 2, 4, 256, 300, 300]
        assert error_text(ValueError("x" * 5000)) == "ValueError: " + "x" * 988
        assert error_text(ValueError()) == "ValueError"
        assert error_text(ValueError("\udcff")) == "ValueError: ?"

    def test_a_text_that_postgresql_cannot_store(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")

        @orders.consumer("c", create=True).worker(retry_delay=0)
        def handle(m: headgate.Message) -> None:
            if m.attempt == 1:
                raise ValueError("\x00\udcff{}\\'\"")

        with running(handle):
            wait_until(lambda: is_done(db))

    async def test_a_coroutine_that_takes_too_long_is_cancelled(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send("a")
        cancelled: list[int] = []

        @(await aorders.consumer("c", create=True)).worker(timeout=0.05, retry_delay=0)
        async def handle(m: headgate.AsyncMessage) -> None:
            if m.attempt == 1:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(m.seq)
                    raise

        async with running_async(handle):
            await until(lambda: is_done(db))
        assert len(cancelled) == 1

    def test_a_function_that_takes_too_long_has_failed(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")
        go = threading.Event()

        @orders.consumer("c", create=True).worker(concurrency=2, timeout=0.05, retry_delay=0)
        def handle(m: headgate.Message) -> None:
            if m.attempt == 1:
                go.wait(30)

        with running(handle):
            wait_until(lambda: is_done(db))
            assert (handle.stats.nacked, handle.stats.acked, handle.stats.running) == (1, 1, 1)
            go.set()
            wait_until(lambda: handle.stats.running == 0)
        assert (handle.stats.nacked, handle.stats.acked) == (1, 1)

    async def test_a_handler_that_is_cancelled_by_what_it_waits_for_has_failed(
        self, db: Db, aorders: headgate.AsyncStream
    ) -> None:
        await aorders.send("a")

        @(await aorders.consumer("c", create=True)).worker(retry_delay=0)
        async def handle(m: headgate.AsyncMessage) -> None:
            if m.attempt == 1:
                other = asyncio.create_task(asyncio.sleep(60))
                other.cancel()
                await other

        async with running_async(handle):
            await until(lambda: is_done(db))
        assert handle.stats.nacked == 1

    def test_logs_have_fields_and_no_data(
        self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        (seq,) = orders.send_batch(["secret"], key="k")
        caplog.set_level(logging.DEBUG, logger="headgate.worker")

        @orders.consumer("c", create=True).worker(retry_delay=0)
        def handle(m: headgate.Message) -> None:
            if m.attempt == 1:
                raise ValueError("boom")

        with running(handle):
            wait_until(lambda: is_done(db))
        records = {r.getMessage().partition(":")[0]: r.__dict__ for r in caplog.records if r.name == "headgate.worker"}
        failed = records["handler failed"]
        assert failed["message"] == f"handler failed: orders/c seq {seq} key 'k' attempt 1: ValueError: boom"
        assert failed["exc_info"]
        assert records["worker started"]["message"].startswith("worker started: orders/c, 8 threads, pid ")
        assert records["worker stopped"]["message"] == "worker stopped: orders/c, acked 1, failed 1"
        about = {name: failed[name] for name in ("stream", "consumer", "seq", "key", "attempt", "error")}
        assert about == {
            "stream": "orders", "consumer": "c", "seq": seq, "key": "k", "attempt": 1, "error": "ValueError: boom",
        }  # fmt: skip
        assert failed["seconds"] >= 0
        assert records["message handled"]["attempt"] == 2
        assert "secret" not in caplog.text + str(records)

    def test_a_consumer_that_is_dropped_ends_the_worker(self, db: Db, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        worker = consumer.worker(lambda m: None)
        orders.send("a")
        thread = threading.Thread(target=lambda: wait_until(lambda: worker.stats.acked == 1) or consumer.drop())
        thread.start()
        with pytest.raises(headgate.errors.ConsumerNotFound):
            worker.run()
        thread.join()


class TestDeadlines:
    def test_a_long_handler_keeps_its_message(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list("abc"))
        go = threading.Event()
        seen: Counter[str] = Counter()

        # with one thread, the others wait claimed and are kept too
        @orders.consumer("c", create=True, ack_wait=1).worker(concurrency=1, prefetch=3)
        def handle(m: headgate.Message) -> None:
            seen[m.data] += 1
            go.wait(30)

        other = orders.consumer("c")
        with running(handle):
            query = "select coalesce(min(deadline - delivered_at) > '3.5 seconds', false) from headgate.deliveries"
            wait_until(lambda: handle.stats.received == 3 and value(db, query))
            assert other.receive(10) == []
            go.set()
            wait_until(lambda: is_done(db))
        assert seen == {"a": 1, "b": 1, "c": 1}
        assert handle.stats.lost == 0

    @pytest.mark.parametrize("fails", [False, True])
    def test_what_was_taken_away_is_neither_started_nor_settled(
        self, db: Db, orders: headgate.Stream, caplog: pytest.LogCaptureFixture, fails: bool
    ) -> None:
        orders.send_batch(list("abc"), key="k")  # one lane, so one delivery
        go = threading.Event()
        seen: list[str] = []

        @orders.consumer("c", create=True, ack_wait=1).worker(concurrency=1, prefetch=3)
        def handle(m: headgate.Message) -> None:
            seen.append(m.data)
            assert go.wait(30)
            if fails:
                raise ValueError("boom")

        with running(handle):
            wait_until(lambda: handle.stats.running == 1 and handle.stats.received == 3)
            pass_time(db, "1 minute")
            taken = receive(db, "orders", "c", 10)
            assert [(m.data, m.attempt) for m in taken] == [("a", 2), ("b", 2), ("c", 2)]
            db.execute("update headgate.delivery set deadline = deadline + interval '1 hour'")
            wait_until(lambda: "delivery lost" in caplog.text)
            go.set()
            wait_until(lambda: handle.stats.lost == 3)
        assert seen == ["a"]
        assert (handle.stats.acked, handle.stats.nacked, handle.stats.released) == (0, 0, 0)
        assert facts(db, "orders", "c")["in_flight"] == 3  # the other one's


class TestOrder:
    def test_messages_of_a_key_run_one_after_the_other_also_after_failures(
        self, db: Db, orders: headgate.Stream
    ) -> None:
        dice = random.Random(7)
        keys = [f"k{dice.randrange(6)}" for _ in range(400)]
        orders.send_batch([headgate.Outgoing(n, key=key) for n, key in enumerate(keys)])
        done: dict[str, list[int]] = defaultdict(list)
        at_work: Counter[str] = Counter()
        overlaps: list[str] = []

        def handle(m: headgate.Message) -> None:
            at_work[m.key] += 1
            if at_work[m.key] > 1:
                overlaps.append(m.key)
            time.sleep(0.0005)
            fails = m.attempt == 1 and dice.random() < 0.15
            if not fails:
                done[m.key].append(m.data)
            at_work[m.key] -= 1
            if fails:
                raise ValueError("boom")

        consumer = orders.consumer("c", create=True, order="key")
        with running(consumer.worker(handle, concurrency=8, batch_size=50, retry_delay=0.01)):
            wait_until(lambda: is_done(db), 60)
        assert not overlaps
        assert done == {key: [n for n, k in enumerate(keys) if k == key] for key in set(keys)}

    async def test_two_workers_keep_the_order_too(self, db: Db, ahg: headgate.AsyncHeadgate) -> None:
        stream = await ahg.stream("orders", create=True, lanes=2)
        await stream.send_batch([headgate.Outgoing(n, key=f"k{n % 5}") for n in range(300)])
        done: dict[str, list[int]] = defaultdict(list)

        async def handle(m: headgate.AsyncMessage) -> None:
            await asyncio.sleep(0.001)
            if m.attempt == 1 and m.data % 17 == 0:
                raise headgate.Retry(delay=0.02)
            done[m.key or ""].append(m.data)

        consumer = await stream.consumer("c", create=True, order="key")
        one, two = (consumer.worker(handle, concurrency=8, batch_size=20) for _ in range(2))
        async with running_async(one), running_async(two):
            await until(lambda: is_done(db), 60)
        assert done == {f"k{k}": list(range(k, 300, 5)) for k in range(5)}

    def test_a_slow_key_does_not_keep_runners_from_others(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch([headgate.Outgoing(n, key="slow") for n in range(50)])
        orders.send_batch([headgate.Outgoing(n, key=f"k{n}") for n in range(50)])
        go = threading.Event()

        @orders.consumer("c", create=True, order="key").worker(concurrency=4, batch_size=20)
        def handle(m: headgate.Message) -> None:
            if m.key == "slow":
                go.wait(30)

        with running(handle):
            wait_until(lambda: facts(db, "orders", "c")["lag"] == 50)
            go.set()
            wait_until(lambda: is_done(db))
