"""Listings that all open pages share: one look at the database, however many ask for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Generic, TypeVar

FRESH = 1.0  # seconds
SLOW = 0.2  # seconds that a look took, after which nobody is made to wait for the next one
OLD = 600.0  # seconds, after which everybody is: it says how old it is, and the next one is on its way
SHARE = 60  # the next look is at least so many times as long after one as it took: under 2 % of a core, always

FIRST = 5.0  # seconds after the first look; then it is known what looking costs

T = TypeVar("T")


class Snapshot(Generic[T]):
    """What `look` last saw."""

    def __init__(
        self, look: Callable[[], Awaitable[T]], fresh: float = FRESH, longest: Callable[[T], float] | None = None
    ) -> None:
        self._look = look
        self._longest = longest  # seconds between looks, by what was seen: a busy machine makes all of them slow
        self._fresh = fresh
        self._until = 0.0
        self._at = 0.0
        self._took = 0.0
        self._lately: deque[float] = deque(maxlen=5)  # what the last looks took
        self._seen: T | None = None
        self._looking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """That of a moment ago, or a new one. Who gives up waiting stops nobody else's."""
        now = monotonic()
        if self._seen is not None and now < self._until:
            return self._seen
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._again())
            self._looking.add_done_callback(_forget)
        if self._seen is not None and self._took > SLOW and now < self._at + OLD:
            return self._seen
        return await asyncio.shield(self._looking)

    async def _again(self) -> T:
        began = monotonic()
        seen = self._seen = await self._look()
        self._at = monotonic()
        self._took = self._at - began
        self._lately.append(self._took)
        # (one that had to wait for others is not what looking costs, nor is the first one, which finds nothing ready)
        pause = min(self._lately) * SHARE
        if self._longest is not None:
            pause = min(pause, self._longest(seen))
        self._until = self._at + max(self._fresh, min(pause, FIRST) if len(self._lately) == 1 else pause)
        return seen


class Snapshots(Generic[T]):
    """Snapshots by what they are of, the ones that were asked for first forgotten when there are many."""

    MOST = 500

    def __init__(self, look: Callable[..., Awaitable[T]], fresh: float) -> None:
        self._look = look
        self._fresh = fresh
        self._known: dict[tuple[Any, ...], Snapshot[T]] = {}

    async def get(self, *about: Any) -> T:
        """What `look(*about)` last saw."""
        found = self._known.get(about)
        if found is None:
            if len(self._known) >= self.MOST:
                del self._known[next(iter(self._known))]
            found = self._known[about] = Snapshot(lambda: self._look(*about), self._fresh)
        return await found.get()


def _forget(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # who waits for it is told
