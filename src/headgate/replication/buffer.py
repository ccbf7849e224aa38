"""What was read and is not sent yet: bounded, so that a slow stream holds up the reader and not the memory."""

from __future__ import annotations

import asyncio
from collections import deque

from .assembling import MOST_CHARACTERS, MOST_MESSAGES, Batch


class Buffer:
    """Batches from one task to another. Small ones grow together while they wait, so a slow stream gets larger ones."""

    def __init__(self, most_characters: int = 8 * MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._batches: deque[Batch] = deque()
        self._characters = 0
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._batches

    async def put(self, batch: Batch) -> None:
        """Adds a batch; waits for room."""
        while self._batches and self._characters + batch.characters > self._most:
            await self._wait()
        last = self._batches[-1] if self._batches else None
        if last is not None and last.end is not None and batch.end is not None and _fit(last, batch):
            last.join(batch)
        else:
            self._batches.append(batch)
        self._characters += batch.characters
        self._changed.set()

    async def take(self) -> Batch:
        """The next batch; waits for one."""
        while not self._batches:
            await self._wait()
        batch = self._batches.popleft()
        self._characters -= batch.characters
        self._changed.set()
        return batch

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _fit(one: Batch, other: Batch) -> bool:
    return len(one) + len(other) <= MOST_MESSAGES and one.characters + other.characters <= MOST_CHARACTERS
