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
        now = self._clock()
        left, at = self._left.get(token, (float(rate), now))
        left = min(float(rate), left + (now - at) * rate)
        if left < 1:
            self._left[token] = (left, now)
            raise Problem(
                429, "rate_limited", f"{who} may make {rate} requests a second", "slow down", (1 - left) / rate
            )
        if token not in self._left and len(self._left) >= self.MOST:
            self._left.clear()
        self._left[token] = (left - 1, now)
