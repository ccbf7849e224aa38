"""Deadlines of requests, and how calls gather into groups."""

from __future__ import annotations

import asyncio

import pytest

from headgate.server.flow.batching import Grouper
from headgate.server.http.limits import Deadlines


async def test_a_block_that_takes_too_long_is_ended() -> None:
    deadlines = Deadlines(0.05)
    with pytest.raises(TimeoutError):
        with deadlines.of_this_task():
            await asyncio.sleep(20)
    assert not deadlines.running
    await asyncio.sleep(0)  # the task goes on: nothing of the cancellation is left
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_time_that_is_not_counted() -> None:
    deadlines = Deadlines(0.1)
    with deadlines.of_this_task() as limit:
        limit.pause()
        await asyncio.sleep(0.3)
        limit.start()
        await asyncio.sleep(0.02)


async def test_who_is_cancelled_by_somebody_else_is_cancelled() -> None:
    deadlines = Deadlines(20)

    async def work() -> None:
        with deadlines.of_this_task():
            await asyncio.sleep(20)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not deadlines.running


async def test_those_that_came_together_come_together_again() -> None:
    sizes: list[int] = []

    async def commit(key: str, items: list[int]) -> list[int]:
        sizes.append(len(items))
        await asyncio.sleep(0.005)
        return items

    grouper: Grouper[int, int] = Grouper(commit, lambda _: 1, most=100, linger=5)

    async def call_often(number: int) -> None:
        for turn in range(6):
            assert await grouper.submit("key", number) == number
            await asyncio.sleep(0.001 * (number % 5) if turn < 5 else 0)

    async with asyncio.timeout(4):  # a group that is complete waits no longer, whatever the linger
        await asyncio.gather(*(call_often(number) for number in range(20)))
    assert sizes == [20] * 6


async def test_a_lone_call_waits_for_nobody() -> None:
    async def commit(key: str, items: list[int]) -> list[int]:
        return items

    grouper: Grouper[int, int] = Grouper(commit, lambda _: 1, most=100, linger=5)
    async with asyncio.timeout(4):
        for number in range(50):
            assert await grouper.submit("key", number) == number
    assert grouper.groups == 50
