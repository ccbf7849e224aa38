"""Listings that all open pages share: one look at the database, however many ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

FRESH = 1.0  # seconds
SHARE = 20  # the next look is at least so many times as long after one as it took: at most a twentieth of a core

T = TypeVar("T")


class Snapshot(Generic[T]):
    """What `look` last saw."""

    def __init__(self, look: Callable[[], Awaitable[T]], fresh: float = FRESH) -> None:
        self._look = look
        self._fresh = fresh
        self._until = 0.0
        self._seen: T | None = None
        self._looking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """That of a moment ago, or a new one. Who gives up waiting stops nobody else's."""
        if self._seen is not None and monotonic() < self._until:
            return self._seen
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._again())
        return await asyncio.shield(self._looking)

    async def _again(self) -> T:
        began = monotonic()
        seen = self._seen = await self._look()
        took = monotonic() - began
        self._until = began + took + max(self._fresh, took * SHARE)
        return seen
