"""The other processes of this server, as the requests of one see them; and a server that has none."""

from __future__ import annotations

from typing import Protocol

from .http.limits import Places, Rates
from .operate.metrics import Figures


class Siblings(Protocol):
    """What one process tells the others, and what it shares with them."""

    @property
    def processes(self) -> int:
        """How many there are, this one included."""

    @property
    def restarts(self) -> int:
        """How many were started again."""

    def rates(self, number: int) -> Rates:
        """Rates of tokens (0) or of webhooks (1)."""

    def places(self) -> Places:
        """Polls that wait at consumers."""

    def waiting(self, count: int) -> None:
        """So many wait here for messages."""

    def closed(self) -> None:
        """A connection has ended."""

    def published(self, stream: str, last: int, count: int) -> None:
        """Messages were committed here."""

    def may_have_work(self, stream: str, consumer: str, count: int) -> None:
        """Something may have become available for a consumer."""

    def altered(self, stream: str, consumer: str) -> None:
        """A consumer's settings were changed here."""

    def revoked(self, id: str) -> None:
        """A token was changed here."""

    def source_changed(self, name: str) -> None:
        """A source of webhooks was changed here."""

    async def figures(self) -> list[Figures]:
        """What all the others have counted."""


class Alone:
    """No others."""

    processes = 1
    restarts = 0

    def rates(self, number: int) -> Rates:
        """Its own."""
        return Rates()

    def places(self) -> Places:
        """Its own."""
        return Places()

    def waiting(self, count: int) -> None:
        """Nobody asks."""

    def closed(self) -> None:
        """Nobody asks."""

    def published(self, stream: str, last: int, count: int) -> None:
        """Nobody is told."""

    def may_have_work(self, stream: str, consumer: str, count: int) -> None:
        """Nobody is told."""

    def altered(self, stream: str, consumer: str) -> None:
        """Nobody is told."""

    def revoked(self, id: str) -> None:
        """Nobody is told."""

    def source_changed(self, name: str) -> None:
        """Nobody is told."""

    async def figures(self) -> list[Figures]:
        """None."""
        return []
