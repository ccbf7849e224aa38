"""What runs beside other work: one protocol for all services, and one pace for all loops and waits.

A service begins with `start`, takes on nothing new after `drain`, and has ended when `stop` returns. Most services are
one task: they extend `TaskService` and say in `_run` what the task does.

A loop that finds nothing to do, or that fails, waits longer each time. How long says a `Pace`:

    RETRY = Pace(0.1, 5.0)  # seconds between tries to connect

    pause = 0.0
    while not await connected():
        pause = RETRY.after(pause)
        await asyncio.sleep(spread(pause))
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

LAST_SECOND = 1.0  # that a cancelled task has to end before it is cancelled again


class Service(Protocol):
    """Something that runs beside other work, from `start` to `stop`."""

    def start(self) -> None:
        """Begins. Returns at once."""

    def drain(self) -> None:
        """Takes on nothing new; what is under way may finish. Returns at once, and may be called again."""

    async def stop(self) -> None:
        """Drains, waits for what is under way, and ends. A service that was never started has nothing to do here."""

    @property
    def is_alive(self) -> bool:
        """False when the work has ended although nobody asked for that: then the process must be started again."""


class TaskService:
    """A service that is one task: `_run`, which goes on until it is cancelled."""

    task_name = "headgate"

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self.is_draining = False

    def start(self) -> None:
        """Starts the task."""
        self._task = asyncio.create_task(self._run(), name=self.task_name)

    def drain(self) -> None:
        """Takes on nothing new."""
        self.is_draining = True

    async def stop(self) -> None:
        """Ends the task."""
        self.drain()
        if self._task is not None:
            await cancel_and_wait([self._task])

    @property
    def is_alive(self) -> bool:
        """Whether the task runs, as it must from `start` to `drain`."""
        return self._task is None or self.is_draining or not self._task.done()

    async def _run(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Pace:
    """The pauses of a loop, in seconds: `shortest` at first, then `growth` times longer each time, up to `longest`."""

    shortest: float
    longest: float
    growth: float = 2.0

    def after(self, pause: float) -> float:
        """The pause that follows this one; after 0, the first."""
        return min(max(pause * self.growth, self.shortest), self.longest)


def spread(pause: float) -> float:
    """A fifth more or less, so that what failed together does not come back together."""
    return pause * random.uniform(0.8, 1.2)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event for so many seconds; whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for them; again when a call that returns at that moment has swallowed a cancellation."""
    tasks = list(tasks)
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=LAST_SECOND)
