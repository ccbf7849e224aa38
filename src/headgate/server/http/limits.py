"""When it is too much: requests in work, bytes in memory, requests a second of one token, address or source; time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Protocol

from .errors import Problem

LOOK_EVERY = 0.25  # seconds: so much later than said a request may end


class Gauge:
    """So many at once, of anything; more is answered with 429."""

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self.now = 0

    def enter(self, amount: int = 1) -> None:
        """Takes some of it; `leave` gives it back."""
        if self.now + amount > self.most:
            raise Problem(429, "busy", f"the server has too many {self.what}", "try again in a moment", 1.0)
        self.now += amount

    def leave(self, amount: int = 1) -> None:
        """Gives it back."""
        self.now -= amount


class Rates:
    """So many requests a second of each token (or address, or source), with a burst of one second's worth."""

    MOST = 10_000  # tokens remembered

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # what is left, and when that was

    def spend(self, token: str, rate: int, who: str = "this token") -> None:
        """Counts one request, or 429 with the time until the next is possible."""
        left = self._take(token, rate, self._clock())
        if left < 0:
            wait = -left / rate
            raise Problem(429, "rate_limited", f"{who} may make {rate} requests a second", "slow down", wait)

    def _take(self, token: str, rate: int, now: float) -> float:
        """Takes one, if there is one: what is left then. Else how much is missing, below 0."""
        left = refilled(self._left.get(token), rate, now)
        if token not in self._left and len(self._left) >= self.MOST:
            self._left.clear()
        self._left[token] = (left - 1 if left >= 1 else left, now)
        return left - 1


def refilled(before: tuple[float, float] | None, rate: int, now: float) -> float:
    """What a token may spend now, after what was left of it and when that was."""
    left, at = before or (float(rate), now)
    return min(float(rate), left + max(now - at, 0.0) * rate)


class Places:
    """How many polls wait at each consumer."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], int] = {}

    def enter(self, place: tuple[str, str], most: int | None) -> None:
        """One more waits at this consumer, or 429 where as many do as may."""
        here = self._count(place)
        if most is not None and here >= most:
            raise Problem(
                429, "too_many_waiting", f"{here} long polls wait at this consumer already, as many as may",
                "ask again in a moment, or raise the consumer's max_waiting", 1.0,
            )  # fmt: skip
        self._add(place, 1)

    def leave(self, place: tuple[str, str]) -> None:
        """It waits no more."""
        self._add(place, -1)

    def _count(self, place: tuple[str, str]) -> int:
        return self._waiting.get(place, 0)

    def _add(self, place: tuple[str, str], amount: int) -> None:
        self._waiting[place] = self._waiting.get(place, 0) + amount
        if not self._waiting[place]:
            del self._waiting[place]


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
