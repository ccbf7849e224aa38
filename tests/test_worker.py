"""Workers: handlers in tasks and threads, retries, deadlines, order, stopping, and a database that goes away."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from calls import Db, column, facts, pass_time, receive, value
from conftest import NewCluster, wait_until

import headgate
from headgate.worker_options import default_delay, error_text


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(database_url) as hg:
        yield hg


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
async def ahg(database_url: str) -> AsyncIterator[headgate.AsyncHeadgate]:
    async with await headgate.connect_async(database_url) as hg:
        yield hg


@pytest.fixture
async def aorders(ahg: headgate.AsyncHeadgate) -> headgate.AsyncStream:
    return await ahg.stream("orders", create=True, lanes=4)


@contextmanager
def running(worker: headgate.Worker) -> Iterator[None]:
    """The worker, in a thread of its own; what it raises is raised here."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@asynccontextmanager
async def running_async(worker: headgate.AsyncWorker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting after {seconds:g} seconds"
        await asyncio.sleep(0.01)


def is_done(db: Db, consumer: str = "c") -> bool:
    row = facts(db, "orders", consumer)
    return row["lag"] == 0


class TestHandlers:
    def test_a_function_gets_every_message(self, db: Db, orders: headgate.Stream) -> None:
        sent = orders.send_batch([{"n": n} for n in range(500)])
        seen: list[tuple[int, int, str]] = []

        @orders.consumer("c", create=True).worker(concurrency=4, batch_size=20)
        def handle(m: headgate.Message) -> None:
            """Handles."""
            seen.append((m.seq, m.data["n"], threading.current_thread().name))

        with running(handle):
            wait_until(lambda: is_done(db))
        assert sorted(seq for seq, _, _ in seen) == sorted(sent)
        assert sorted(n for _, n, _ in seen) == list(range(500))
        assert threading.current_thread().name not in {name for _, _, name in seen}
        assert handle.__doc__ == "Handles."
        assert (handle.stats.received, handle.stats.acked, handle.stats.running, handle.stats.waiting) == (
            500,
            500,
            0,
            0,
        )

    async def test_a_coroutine_function_gets_every_message(self, db: Db, aorders: headgate.AsyncStream) -> None:
        sent = await aorders.send_batch([{"n": n} for n in range(500)])
        seen: list[int] = []

        @(await aorders.consumer("c", create=True)).worker(concurrency=4, batch_size=20)
        async def handle(m: headgate.AsyncMessage) -> None:
            await asyncio.sleep(0)
            seen.append(m.seq)

        async with running_async(handle):
            await until(lambda: is_done(db))
        assert sorted(seen) == sorted(sent)
        assert handle.stats.acked == 500

    async def test_a_plain_function_of_an_async_consumer_runs_in_threads(
        self, db: Db, aorders: headgate.AsyncStream
    ) -> None:
        await aorders.send_batch(list("abc"))
        names: list[str] = []
        consumer = await aorders.consumer("c", create=True)
        worker = consumer.worker(lambda m: names.append(threading.current_thread().name))
        async with running_async(worker):
            await until(lambda: len(names) == 3 and is_done(db))
        assert threading.current_thread().name not in names

    def test_no_more_run_at_once_than_its_concurrency(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list(range(60)))
        full = threading.Barrier(3, timeout=30)  # it takes three at once to get through
        most: list[int] = []

        def handle(m: headgate.Message) -> None:
            most.append(worker.stats.running)
            full.wait()

        worker = orders.consumer("c", create=True).worker(handle, concurrency=3, prefetch=60)
        with running(worker):
            wait_until(lambda: is_done(db))
        assert max(most) <= 3

    def test_a_slow_message_holds_up_no_other(self, db: Db, orders: headgate.Stream) -> None:
        slow, *_ = orders.send_batch(list(range(100)))
        go = threading.Event()

        @orders.consumer("c", create=True).worker(concurrency=2, batch_size=100, prefetch=100)
        def handle(m: headgate.Message) -> None:
            if m.seq == slow:
                assert go.wait(30)

        with running(handle):
            wait_until(lambda: handle.stats.acked == 99 and facts(db, "orders", "c")["lag"] == 1)
            go.set()
            wait_until(lambda: is_done(db))

    def test_claims_no_more_than_it_can_work_on_soon(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list(range(100)))
        go = threading.Event()
        worker = orders.consumer("c", create=True).worker(lambda m: go.wait(30), concurrency=2, batch_size=100)
        with running(worker):
            wait_until(lambda: worker.stats.running == 2)
            assert worker.stats.received == 2
            go.set()
            wait_until(lambda: is_done(db))

    def test_middleware_is_applied_from_the_outside_in(self, db: Db, orders: headgate.Stream) -> None:
        orders.send("a")
        steps: list[str] = []

        def layer(name: str) -> Callable[..., Any]:
            def call(message: headgate.Message, call_next: Callable[[headgate.Message], Any]) -> Any:
                steps.append(f"{name} in")
                answer = call_next(message)
                steps.append(f"{name} out")
                return answer

            return call

        @orders.consumer("c", create=True).worker(middleware=[layer("first"), layer("second")])
        def handle(m: headgate.Message) -> None:
            steps.append(m.data)

        with running(handle):
            wait_until(lambda: is_done(db))
        assert steps == ["first in", "second in", "a", "second out", "first out"]

    async def test_async_middleware_may_turn_a_failure_into_success(
        self, db: Db, aorders: headgate.AsyncStream
    ) -> None:
        await aorders.send("a")

        async def forgive(message: headgate.AsyncMessage, call_next: Callable[..., Any]) -> None:
            with suppress(ValueError):
                await call_next(message)

        @(await aorders.consumer("c", create=True)).worker(middleware=[forgive])
        async def handle(m: headgate.AsyncMessage) -> None:
            raise ValueError

        async with running_async(handle):
            await until(lambda: is_done(db))
        assert (handle.stats.acked, handle.stats.nacked) == (1, 0)

    def test_wrong_options_are_refused(self, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)

        async def coroutine(m: Any) -> None: ...

        def plain(m: Any) -> None: ...

        with pytest.raises(headgate.InvalidArgument, match="coroutine"):
            consumer.worker(coroutine)
        with pytest.raises(headgate.InvalidArgument, match="kind"):
            consumer.worker(plain, middleware=[coroutine])
        for wrong in ({"concurrency": 0}, {"batch_size": 0}, {"prefetch": 0}, {"timeout": 0}, {"grace": -1}):
            with pytest.raises(headgate.InvalidArgument):
                consumer.worker(plain, **wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            consumer.worker(plain, speed=11)  # type: ignore[call-overload]


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
        records = {r.getMessage(): r.__dict__ for r in caplog.records if r.name == "headgate.worker"}
        failed = records["handler failed"]
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
        with pytest.raises(headgate.ConsumerNotFound):
            worker.run()
        thread.join()


class TestSettledByTheHandler:
    def test_acked(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list("abc"))

        @orders.consumer("c", create=True).worker(prefetch=3)
        def handle(m: headgate.Message) -> None:
            assert m.extend(60)
            assert m.ack()
            assert m.settled == "acked"
            if m.data == "b":
                raise ValueError("after the fact")

        with running(handle):
            wait_until(lambda: is_done(db) and handle.stats.received == 3)
        assert (handle.stats.acked, handle.stats.nacked, handle.stats.lost) == (0, 0, 0)

    async def test_nacked(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send_batch(list("abc"), key="k")
        seen: list[str] = []

        @(await aorders.consumer("c", create=True, order="key")).worker(prefetch=3)
        async def handle(m: headgate.AsyncMessage) -> None:
            seen.append(m.data)
            await m.nack(delay=60)

        async with running_async(handle):
            await until(lambda: seen and handle.stats.waiting == 0 and facts(db, "orders", "c")["parked"] == 3)
        assert seen == ["a"]  # the others wait behind it
        assert (handle.stats.acked, handle.stats.nacked) == (0, 0)

    def test_acked_in_a_transaction_of_its_own(self, db: Db, hg: headgate.Headgate, orders: headgate.Stream) -> None:
        orders.send("a")
        db.execute("create table ledger (seq bigint)")

        @orders.consumer("c", create=True).worker()
        def handle(m: headgate.Message) -> None:
            with hg.pool.connection() as tx, tx.transaction():
                tx.execute("insert into ledger values (%s)", [m.seq])
                assert m.ack(conn=tx)

        with running(handle):
            wait_until(lambda: is_done(db))
        assert value(db, "select count(*) from ledger") == 1


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


class TestStopping:
    def test_release_hands_back_without_an_attempt(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list("abc"), key="k")
        consumer = orders.consumer("c", create=True, order="key", max_deliver=1)
        a, b, c = consumer.receive(3)
        assert consumer.release([b]) == headgate.Settled(1, 0)  # c goes with it: it may not overtake
        assert column(db, "select seq from headgate.parked_messages where reason = 'released' order by 1") == [
            b.seq,
            c.seq,
        ]
        assert consumer.receive(3) == []
        assert consumer.release([b, c]) == headgate.Settled(0, 2)
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
        assert consumer.release(deliveries) == headgate.Settled(3, 0)
        assert sorted((m.data, m.attempt) for m in consumer.receive(3)) == [("a", 2), ("b", 1), ("c", 1)]
        with pytest.raises(headgate.InvalidAckId):
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


def test_the_seam_is_set() -> None:
    """The client layer does not import the worker; importing headgate ties them together."""
    assert headgate.Consumer.worker_type is headgate.Worker
    assert headgate.AsyncConsumer.worker_type is headgate.AsyncWorker
