"""The time that requests and connections have, with one timer for all: one for each costs more than it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Protocol

LOOK_EVERY = 0.25  # seconds: so much later than said a request may end


class Expiring(Protocol):
    """What may have to end."""

    def expire(self) -> None:
        """The time is up."""


class Deadline:
    """`with deadlines.of_this_task():` the block is cancelled, and raises TimeoutError, when its time is up."""

    __slots__ = ("_all", "_is_over", "_task")

    def __init__(self, all: Deadlines, task: asyncio.Task[object]) -> None:
        self._all = all
        self._task = task
        self._is_over = False

    def start(self) -> None:
        """The time begins, or begins anew."""
        self._all.add(self)

    def pause(self) -> None:
        """Until `start` no time counts."""
        self._all.remove(self)

    def expire(self) -> None:
        """The time is up."""
        self._is_over = True
        self._task.cancel()

    def __enter__(self) -> Deadline:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.remove(self)
        # cancelled by somebody else, too: then that counts
        if self._is_over and self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error


class Deadlines:
    """All whose time runs, the first one due first: all have the same."""

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._every = min(max(LOOK_EVERY, seconds / 100), seconds / 4)
        self._clock = clock
        self.running: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def of_this_task(self) -> Deadline:
        """A deadline for what the current task does next."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)  # looking for the loop each time would be a call of the system
        assert task is not None
        return Deadline(self, task)

    def add(self, one: Expiring) -> None:
        """Its time begins now."""
        self.running.pop(one, None)  # at the end again: the first ones are due first
        self.running[one] = self._clock() + self._seconds
        if self._timer is None:
            self._look_later()

    def remove(self, one: Expiring) -> None:
        """It has no time to keep any more."""
        self.running.pop(one, None)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        """Ends those whose time is up."""
        now = self._clock()
        self._timer = None
        while self.running:
            first = next(iter(self.running))
            if self.running[first] > now:
                self._look_later()
                return
            del self.running[first]
            first.expire()
