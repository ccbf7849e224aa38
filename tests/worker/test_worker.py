"""Workers: handlers in tasks and threads, and what they settle themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import headgate
from support.calls import Db, facts, value
from support.clients import is_done, running, running_async, until
from support.waiting import wait_until


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

        async def around(m: Any, call_next: Any) -> None: ...

        with pytest.raises(headgate.errors.InvalidArgument, match="coroutine"):
            consumer.worker(coroutine)
        with pytest.raises(headgate.errors.InvalidArgument, match="kind"):
            consumer.worker(plain, middleware=[around])
        for wrong in ({"concurrency": 0}, {"batch_size": 0}, {"prefetch": 0}, {"timeout": 0}, {"grace": -1}):
            with pytest.raises(headgate.errors.InvalidArgument):
                consumer.worker(plain, **wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            consumer.worker(plain, speed=11)  # type: ignore[call-overload]


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

    def test_acked_in_order_makes_room_for_more(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch([("k", n) for n in range(10)])
        seen: list[int] = []

        @orders.consumer("c", create=True, order="key").worker(prefetch=3)
        def handle(m: headgate.Message) -> None:
            seen.append(m.data)
            m.ack()

        with running(handle):
            wait_until(lambda: is_done(db))
        assert seen == list(range(10))

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

    @pytest.mark.parametrize("by", [0, timedelta(0)])
    def test_given_back(self, db: Db, orders: headgate.Stream, by: float | timedelta) -> None:
        """What is visible at once goes to whoever asks, and so do the later ones of its key: they are not run here."""
        orders.send_batch(list("abc"), key="k")
        consumer = orders.consumer("c", create=True, order="key")
        seen: list[str] = []
        taken: list[headgate.Message] = []

        @consumer.worker(prefetch=3)
        def handle(m: headgate.Message) -> None:
            seen.append(m.data)
            assert m.extend(60)
            assert m.settled is None
            assert m.extend(by)
            assert m.settled == "returned"
            while not taken:
                taken.extend(consumer.receive(3, wait=1))
            handle.stop()

        with running(handle):
            wait_until(lambda: taken and handle.stats.running == 0)
        assert seen == ["a"]
        assert (handle.stats.acked, handle.stats.nacked, handle.stats.released) == (0, 0, 0)
        assert [(m.data, m.attempt) for m in taken] == [("a", 2), ("b", 1), ("c", 1)]
        assert consumer.ack(taken).settled == 3

    async def test_given_back_and_received_again(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send_batch(list("abc"), key="k")
        seen: list[tuple[str, int]] = []
        given: list[str | None] = []

        @(await aorders.consumer("c", create=True, order="key")).worker(prefetch=3)
        async def handle(m: headgate.AsyncMessage) -> None:
            seen.append((m.data, m.attempt))
            if m.attempt == 1 and m.data != "c":
                await m.extend(0)
                given.append(m.settled)

        async with running_async(handle):
            await until(lambda: is_done(db))
        assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]
        assert given == ["returned"] * 2
        assert (handle.stats.acked, handle.stats.nacked) == (3, 0)

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


def test_the_seam_is_set() -> None:
    """The client layer does not import the worker; importing headgate ties them together."""
    assert headgate.Consumer.worker_type is headgate.Worker
    assert headgate.AsyncConsumer.worker_type is headgate.AsyncWorker
