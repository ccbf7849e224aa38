"""What the requests of one process share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from ..aio import AsyncConsumer, AsyncHeadgate, AsyncStream
from ..database import statements
from ..errors import ConsumerNotFound, Error, StreamNotFound
from ..replication.service import SourceReaders
from .ending import end
from .flow.batching import Batching
from .flow.polling import Polling
from .http.deadlines import Deadlines
from .http.limits import Gauge
from .http.protocol import most_connections
from .intake.webhooks import Sources
from .operate.auth import Tokens
from .operate.availability import Availability
from .operate.metrics import Figures, Metrics
from .push.pushing import Pushing
from .settings import Settings
from .siblings import Alone, Siblings

log = logging.getLogger("headgate.server")

KEEP_ALIVE = 75.0  # seconds that a connection may be idle: longer than the longest poll
FORGET_EVERY = 600.0  # seconds between looks for administrative calls that are too old
MOST_CONSUMERS = 10_000  # remembered, with the id of their stream
REMEMBERED = 5.0  # seconds, of a consumer's settings


class Service:
    """The database, and everything that requests share on their way to it."""

    def __init__(self, hg: AsyncHeadgate, settings: Settings, siblings: Siblings | None = None) -> None:
        self.hg = hg
        self.settings = settings
        self.siblings = siblings or Alone()
        self.availability = Availability(hg)
        self.tokens = Tokens(hg)
        self.polling = Polling(hg, siblings=self.siblings)
        self.metrics = Metrics()
        self.batching = Batching(
            hg, on=settings.batching, seconds=settings.timeout, published=self._published, timed=self.metrics.commit
        )
        self.in_work = Gauge(settings.in_work, "requests in work")
        self.waiting = Gauge(settings.waiting, "polls waiting")
        self.bodies = Gauge(settings.bodies_limit, "bytes in work")
        self.rates = self.siblings.rates(0)
        self.webhooks_in_work = Gauge(settings.webhooks_in_work, "webhooks in work")
        self.webhook_bodies = Gauge(settings.webhook_bodies_limit, "bytes of webhooks in work")
        self.webhook_rates = self.siblings.rates(1)
        self.sources = Sources(hg)
        self.readers = SourceReaders(self.hg.run, lambda: self.hg.url, pooler=settings.pooler)
        self.pushing = Pushing(self)
        self.waiting_at = self.siblings.places()  # of each consumer, polls that wait
        self._consumers: dict[tuple[str, str], tuple[float, AsyncConsumer]] = {}
        self.most_connections = most_connections(settings.connections)
        self.connections: Callable[[], int] = lambda: 0  # how many callers are connected; who listens knows
        self.deadlines = Deadlines(settings.timeout)  # of requests in work
        self.heads = Deadlines(settings.head_timeout)  # of connections: for the head of a request that has begun
        self.idle = Deadlines(KEEP_ALIVE)  # and between two requests
        self._forgetting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins what runs beside the requests."""
        self.availability.start()
        self.polling.start()
        if self.settings.push:
            self.pushing.start()
        if self.settings.read_sources:
            self.readers.start()
        if self.settings.audit_days is not None:
            self._forgetting = asyncio.create_task(self._forget_audit(self.settings.audit_days))

    def drain(self) -> None:
        """Begins to end: polls are answered, and nothing new is pushed."""
        self.polling.drain()
        self.pushing.drain()

    async def stop(self) -> None:
        """Ends it, once what is being pushed is done."""
        self.drain()
        await self.readers.stop()
        await self.pushing.stop()
        await self.polling.stop()
        await self.availability.stop()
        if self._forgetting is not None:
            await end([self._forgetting])

    def stream(self, name: str) -> AsyncStream:
        """A stream by name; whether it exists, its calls say."""
        return AsyncStream(self.hg, name)

    async def consumer(self, stream: str, name: str) -> AsyncConsumer:
        """A consumer by name, remembered: receiving needs to know its stream's id."""
        until, found = self._consumers.get((stream, name), (0.0, None))
        if found is None or until < monotonic():
            found = await self.stream(stream).consumer(name)
            found.is_traced = False  # requests have spans of their own, and several share a call of the SDK
            if len(self._consumers) >= MOST_CONSUMERS:
                self._consumers.clear()
            self._consumers[stream, name] = (monotonic() + REMEMBERED, found)
        return found

    def altered(self, stream: str, consumer: str) -> None:
        """The settings of a consumer were changed through this process: they hold at once."""
        self.siblings.altered(stream, consumer)
        self.heard_altered(stream, consumer)

    def heard_altered(self, stream: str, consumer: str) -> None:
        """The settings of a consumer were changed through this server."""
        self._consumers.pop((stream, consumer), None)
        self.polling.wake(stream, consumer, 1)
        self.pushing.changed()

    def revoke(self, id: str) -> None:
        """A token was changed through this process: that holds at once."""
        self.siblings.revoked(id)
        self.tokens.forget(id)

    def change_source(self, name: str) -> None:
        """A source was changed through this process: that holds at once."""
        self.siblings.source_changed(name)
        self.sources.forget(name)
        self.readers.changed()

    def forget(self, error: Error, stream: str | None, consumer: str | None) -> None:
        """Remembers a consumer no longer that turned out to be gone."""
        if isinstance(error, (StreamNotFound, ConsumerNotFound)) and stream is not None and consumer is not None:
            self._consumers.pop((stream, consumer), None)

    async def audit(self, note: tuple[Any, ...]) -> None:
        """Notes an administrative call (`auditing.note`). That it cannot be noted is said in the log."""
        status = note[3]
        try:
            await self.hg.run(statements.NOTE_AUDIT, note)
        except Error as error:
            log.error("an administrative call was not noted: %s %s", status, error.message)

    def figures(self) -> Figures:
        """What this process has counted, and how it stands."""
        pool = self.hg.pool.get_stats() if self.hg.is_open else {}
        gauges = {
            "headgate_database_connections": pool.get("pool_size", 0),
            "headgate_database_waiting": pool.get("requests_waiting", 0),
            "headgate_http_in_work": self.in_work.now,
            "headgate_http_polls_waiting": self.waiting.now,
            "headgate_http_connections": self.connections(),
            "headgate_batch_groups_total": self.batching.sends.groups,
            "headgate_batch_calls_total": self.batching.sends.calls,
        }
        return self.metrics.figures({name: float(value) for name, value in gauges.items()})

    async def _forget_audit(self, days: int) -> None:
        """Removes old notes, a part at a time. Any number of replicas may do it."""
        while True:
            removed = 0
            try:
                [(removed,)] = await self.hg.run(statements.FORGET_AUDIT, (f"{days} days",))
            except Exception as error:  # the next round does it
                log.debug("old administrative calls were not removed: %s", error)
            await asyncio.sleep(1 if removed else FORGET_EVERY)

    def _published(self, stream: str, seqs: Sequence[int]) -> None:
        self.metrics.count("published", stream, None, len(seqs))
        self.polling.published(stream, seqs)
