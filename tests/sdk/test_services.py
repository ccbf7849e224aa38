"""What all services and loops have in common."""

from __future__ import annotations

import asyncio

import pytest

from headgate.service import Pace, TaskService, cancel_and_wait, is_set_within


class Endless(TaskService):
    async def _run(self) -> None:
        await asyncio.Event().wait()


class Failing(TaskService):
    async def _run(self) -> None:
        raise RuntimeError("it should not")


def test_a_pace_grows_up_to_its_longest_pause() -> None:
    pace, pauses = Pace(0.1, 1.0), [0.0]
    for _ in range(6):
        pauses.append(pace.after(pauses[-1]))
    assert pauses[1:] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert Pace(2.0, 2.0).after(2.0) == 2.0


async def test_a_service_is_alive_until_its_task_ends_by_itself() -> None:
    endless, failing = Endless(), Failing()
    assert endless.is_alive  # not started: nothing is wrong with it
    endless.start()
    failing.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert endless.is_alive
    assert not failing.is_alive
    endless.drain()
    assert endless.is_alive
    await endless.stop()
    assert endless.is_alive  # it was asked to end
    await failing.stop()
    await Endless().stop()


async def test_a_wait_for_an_event_says_whether_it_is_set() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, 60)
    assert await is_set_within(event, 0)


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.service.LAST_SECOND", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_and_wait([task])
    assert task.cancelled()
    assert swallowed == 1
