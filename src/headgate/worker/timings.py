"""A sample of how long messages took, for the report: an ack leaves no trace of its message in the database."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from ..database.columns import Array

MOST = 10_000  # samples that wait for the database at most


class Timings:
    """Samples that are not noted yet. The share says which part of the messages is sampled."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._samples: list[tuple[str | None, int, float, float]] = []

    def note(self, message: Any, handled: float) -> None:
        """Perhaps takes a message that was just handled, in so many seconds."""
        if self._share <= 0 or random.random() >= self._share or len(self._samples) >= MOST:
            return
        waited = (datetime.now(UTC) - message.created_at).total_seconds() - handled
        self._samples.append((message.channel, message.attempt, waited, handled))

    def take(self) -> tuple[Array, ...] | None:
        """The samples as `statements.NOTE_TIMINGS` takes them; they are forgotten here."""
        if not self._samples:
            return None
        samples, self._samples = self._samples, []
        channels, *numbers = zip(*samples, strict=True)
        return Array(channels), *(Array(map(str, column)) for column in numbers)
