"""What the requests of one process share."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .. import statements
from ..aio import AsyncConsumer, AsyncHeadgate, AsyncStream
from ..errors import ConsumerNotFound, Error, StreamNotFound
from .auth import Caller, Tokens
from .batching import Batching
from .deadlines import Deadlines
from .limits import Gauge, Rates
from .metrics import Metrics
from .polling import Polling
from .settings import Settings

log = logging.getLogger("headgate.server")

MOST_CONSUMERS = 10_000  # remembered, with the id of their stream


class Service:
    """The database, and everything that requests share on their way to it."""

    def __init__(self, hg: AsyncHeadgate, settings: Settings) -> None:
        self.hg = hg
        self.settings = settings
        self.tokens = Tokens(hg)
        self.polling = Polling(hg)
        self.metrics = Metrics()
        self.batching = Batching(hg, on=settings.batching, seconds=settings.timeout, published=self._published)
        self.in_work = Gauge(settings.in_work, "requests in work")
        self.waiting = Gauge(settings.waiting, "polls waiting")
        self.bodies = Gauge(settings.bodies_limit, "bytes in work")
        self.rates = Rates()
        self.deadlines = Deadlines(settings.timeout)
        self._consumers: dict[tuple[str, str], AsyncConsumer] = {}

    def start(self) -> None:
        """Begins what runs beside the requests."""
        self.polling.start()

    async def stop(self) -> None:
        """Ends it."""
        await self.polling.stop()

    def stream(self, name: str) -> AsyncStream:
        """A stream by name; whether it exists, its calls say."""
        return AsyncStream(self.hg, name)

    async def consumer(self, stream: str, name: str) -> AsyncConsumer:
        """A consumer by name, remembered: receiving needs to know its stream's id."""
        found = self._consumers.get((stream, name))
        if found is None:
            found = await self.stream(stream).consumer(name)
            if len(self._consumers) >= MOST_CONSUMERS:
                self._consumers.clear()
            self._consumers[stream, name] = found
        return found

    def forget(self, error: Error, stream: str | None, consumer: str | None) -> None:
        """Remembers a consumer no longer that turned out to be gone."""
        if isinstance(error, (StreamNotFound, ConsumerNotFound)) and stream is not None and consumer is not None:
            self._consumers.pop((stream, consumer), None)

    async def audit(self, caller: Caller, address: str | None, action: str, status: int) -> None:
        """Notes an administrative call. That it cannot be noted is said in the log."""
        try:
            clean = action.replace("\x00", "\\0").encode("utf-8", "replace").decode()
            await self.hg.run(statements.NOTE_AUDIT, (f"{caller.id} {caller.name}", address, clean, status))
        except Error as error:
            log.error("an administrative call was not noted: %s %s", status, error.message)

    def _published(self, stream: str, seqs: Sequence[int]) -> None:
        self.metrics.count("published", stream, None, len(seqs))
        self.polling.published(stream, seqs)
