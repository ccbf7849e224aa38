"""Workers: nothing is acked that a handler has not done, whatever kind of function it is."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headgate
from support.calls import Db, column, facts
from support.clients import is_done, running, running_async, until
from support.waiting import wait_until


def plainly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that does not know of coroutines, as most of the world's."""

    @functools.wraps(function)
    def call(m: Any) -> Any:
        return function(m)

    return call


class TestSync:
    @pytest.mark.parametrize("how", ["decorated", "lambda", "generator", "async generator", "map", "behind a layer"])
    def test_what_has_not_run_is_a_failure(self, db: Db, orders: headgate.Stream, how: str) -> None:
        orders.send("a")
        seen: list[Any] = []
        options: dict[str, Any] = {}

        async def coroutine(m: Any) -> None:
            seen.append(m)

        def generator(m: Any) -> Iterator[int]:
            seen.append(m)
            yield 1

        async def stream(m: Any) -> Any:
            seen.append(m)
            yield 1

        handler: Any = {
            "decorated": plainly(coroutine),
            "lambda": lambda m: coroutine(m),
            "generator": plainly(generator),
            "async generator": plainly(stream),
            "map": lambda m: map(seen.append, [m]),
            "behind a layer": plainly(coroutine),
        }[how]
        if how == "behind a layer":  # which forgets what it was given

            def layer(m: Any, call_next: Callable[[Any], Any]) -> None:
                call_next(m)

            options["middleware"] = [layer]
        worker = orders.consumer("c", create=True).worker(handler, retry_delay=60, **options)
        with running(worker):
            wait_until(lambda: worker.stats.nacked == 1)
        assert (seen, worker.stats.acked) == ([], 0)
        (error,) = column(db, "select last_error from headgate.parked_messages")
        assert "nothing of it has run" in error

    def test_generator_functions_are_refused(self, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)

        def generator(m: Any, call_next: Any = None) -> Iterator[int]:
            yield 1

        async def stream(m: Any) -> Any:
            yield 1

        class Looping:
            def __call__(self, m: Any) -> Iterator[int]:
                yield 1

        for handler in (generator, functools.partial(generator), stream, Looping()):
            with pytest.raises(headgate.errors.InvalidArgument, match="generator function"):
                consumer.worker(handler)
        with pytest.raises(headgate.errors.InvalidArgument, match=r"middleware.*generator function"):
            consumer.worker(lambda m: None, middleware=[generator])

    def test_what_cannot_be_called_with_a_message_is_refused(self, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)

        def two(m: Any, other: Any) -> None: ...

        for handler in (lambda: None, two, lambda *, m: None):
            with pytest.raises(headgate.errors.InvalidArgument, match="cannot be called with a message alone"):
                consumer.worker(handler)
        with pytest.raises(headgate.errors.InvalidArgument, match=r"cannot be called with \(message, call_next\)"):
            consumer.worker(lambda m: None, middleware=[lambda m: None])
        for middleware in ([5], 5, "x"):
            with pytest.raises(headgate.errors.InvalidArgument, match="middleware"):
                consumer.worker(lambda m: None, middleware=middleware)

    def test_a_decorator_that_hands_more_to_it_is_none_of_these(self, orders: headgate.Stream) -> None:
        def with_more(function: Any) -> Any:
            return functools.wraps(function)(lambda m: function("session", m))

        assert orders.consumer("c", create=True).worker(with_more(lambda session, m: None)).run

    @pytest.mark.parametrize("option", ["concurrency", "batch_size", "prefetch", "timeout", "grace", "timing"])
    @pytest.mark.parametrize("wrong", ["8", float("nan"), [1]], ids=str)
    def test_options_that_are_no_numbers_are_refused(self, orders: headgate.Stream, option: str, wrong: Any) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match=f"^{option} .* is not possible\nhint: pass a"):
            orders.consumer("c", create=True).worker(lambda m: None, **{option: wrong})  # type: ignore[call-overload]

    def test_what_is_returned_otherwise_does_not_matter(self, db: Db, orders: headgate.Stream) -> None:
        orders.send_batch(list(range(4)))
        worker = orders.consumer("c", create=True).worker(lambda m: [0, "x", {"a": 1}, iter([1])][m.data])
        with running(worker):
            wait_until(lambda: is_done(db))
        assert (worker.stats.acked, worker.stats.nacked) == (4, 0)


class TestAsync:
    @pytest.mark.parametrize("how", ["decorated", "lambda", "returned", "behind a layer"])
    async def test_what_is_to_be_awaited_is(self, db: Db, aorders: headgate.AsyncStream, how: str) -> None:
        await aorders.send_batch(["good", "bad"])
        seen: list[tuple[str, str]] = []
        options: dict[str, Any] = {}

        async def coroutine(m: headgate.AsyncMessage) -> None:
            await asyncio.sleep(0.01)
            seen.append((m.data, threading.current_thread().name))
            if m.data == "bad":
                raise ValueError("boom")

        async def returning(m: headgate.AsyncMessage) -> Any:
            return coroutine(m)

        handler: Any = {"lambda": lambda m: coroutine(m), "returned": returning}.get(how, plainly(coroutine))
        if how == "behind a layer":
            options["middleware"] = [lambda m, call_next: bool(call_next(m))]
        worker = (await aorders.consumer("c", create=True)).worker(handler, retry_delay=60, **options)
        async with running_async(worker):
            await until(lambda: worker.stats.nacked == 1 and worker.stats.acked == 1)
        assert sorted(data for data, _ in seen) == ["bad", "good"]
        assert {name for _, name in seen} == {threading.current_thread().name}
        assert column(db, "select last_error from headgate.parked_messages") == ["ValueError: boom"]

    @pytest.mark.parametrize("how", ["plain", "lambda"])
    async def test_a_plain_function_settles_its_message(self, db: Db, aorders: headgate.AsyncStream, how: str) -> None:
        await aorders.send("a")
        answers: list[Any] = []

        def plain(m: headgate.AsyncMessage) -> None:
            answers.append(m.extend(60))
            answers.append(m.nack(delay=60, error="not now"))

        handler: Any = plain if how == "plain" else lambda m: m.nack(delay=60, error="not now")
        worker = (await aorders.consumer("c", create=True)).worker(handler)
        async with running_async(worker):
            await until(lambda: worker.stats.received == 1 and facts(db, "orders", "c")["parked"] == 1)
        assert (worker.stats.acked, worker.stats.nacked) == (0, 0)
        assert column(db, "select last_error from headgate.parked_messages") == ["not now"]
        assert answers == ([True, True] if how == "plain" else [])

    async def test_a_coroutine_behind_a_lambda_settles_its_message(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send("a")

        async def coroutine(m: headgate.AsyncMessage) -> None:
            assert await m.nack(delay=60, error="not now")

        worker = (await aorders.consumer("c", create=True)).worker(lambda m: coroutine(m))
        async with running_async(worker):
            await until(lambda: worker.stats.received == 1 and facts(db, "orders", "c")["parked"] == 1)
        assert (worker.stats.acked, worker.stats.nacked) == (0, 0)

    async def test_a_generator_is_a_failure(self, db: Db, aorders: headgate.AsyncStream) -> None:
        await aorders.send("a")

        async def returning(m: Any) -> Any:
            return (n for n in range(3))

        worker = (await aorders.consumer("c", create=True)).worker(returning, retry_delay=60)
        async with running_async(worker):
            await until(lambda: worker.stats.nacked == 1)
        (error,) = column(db, "select last_error from headgate.parked_messages")
        assert "returned a generator" in error
