"""When it is too much: requests in work, bytes in memory, requests a second of one token, address or source."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from .errors import Problem


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
