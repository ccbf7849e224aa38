"""What the requests of one process share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from .. import trouble
from ..aio import AsyncConsumer, AsyncHeadgate, AsyncStream
from ..database import statements
from ..database.drivers import Row
from ..errors import ConsumerNotFound, Error, StreamNotFound
from ..replication.service import SourceReaders
from ..service import Service
from ..types import ConsumerInfo, StreamInfo
from .flow.batching import Batching
from .flow.polling import Polling
from .flow.snapshots import Snapshot, Snapshots
from .http.limits import Deadlines, Gauge
from .http.memory import Memory
from .http.protocol import most_connections
from .intake.webhooks import Sources
from .operate import auditing
from .operate.auth import Tokens
from .operate.availability import Availability
from .operate.hiding import Hiding
from .operate.metrics import Figures, Metrics
from .push.pushing import Pushing
from .settings import Settings
from .siblings import Alone, Siblings

log = logging.getLogger("headgate.server")

Seen = tuple[datetime, list[StreamInfo], list[tuple[ConsumerInfo, trouble.Trouble]]]

KEEP_ALIVE = 75.0  # seconds that a connection may be idle: longer than the longest poll
MOST_CONSUMERS = 10_000  # remembered, with the id of their stream
REMEMBERED = 5.0  # seconds, of a consumer's settings


def _longest_pause(seen: Seen) -> float:
    """Seconds between looks at everything: each stream and consumer takes about 0.3 ms of the database."""
    return 2 + 0.02 * (len(seen[1]) + len(seen[2]))


class Server:
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
            hg, on=settings.batching, seconds=settings.timeout, metrics=self.metrics, polling=self.polling
        )
        self.in_work = Gauge(settings.in_work, "requests in work")
        self.waiting = Gauge(settings.waiting, "polls waiting")
        self.bodies = Gauge(settings.bodies_limit, "bytes in work")
        self.memory = Memory()
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
        self.hiding = Hiding.of(settings.hide)
        self.overview = Snapshot(self._look, longest=_longest_pause)
        self.histories: Snapshots[list[Row]] = Snapshots(self._history, fresh=5.0)  # (noted every ten seconds)
        self.findings = Snapshot(hg.insights.doctor, fresh=5.0)
        self._services: dict[str, Service] = {"availability": self.availability, "polling": self.polling}
        if settings.push:
            self._services["pushing"] = self.pushing
        if settings.read_sources:
            self._services["reading sources"] = self.readers
        if settings.audit_days is not None:
            self._services["forgetting audits"] = auditing.Forgetting(hg, settings.audit_days)

    def start(self) -> None:
        """Starts the services that run beside the requests."""
        for service in self._services.values():
            service.start()

    def drain(self) -> None:
        """Begins to end: polls are answered, and nothing new is pushed."""
        for service in self._services.values():
            service.drain()

    async def stop(self) -> None:
        """Ends the services, the first one last: pushing finishes with polling still there, and the database."""
        self.drain()
        for service in reversed(self._services.values()):
            await service.stop()

    @property
    def is_alive(self) -> bool:
        """Whether all services are."""
        return not self.ended

    @property
    def ended(self) -> list[str]:
        """The services that have ended although nobody asked for that."""
        return [name for name, service in self._services.items() if not service.is_alive]

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

    async def _look(self) -> Seen:
        """Everything at a glance."""
        streams, consumers = await asyncio.gather(self.hg.insights.streams(), self.hg.insights.consumers())
        now = datetime.now(UTC)
        return now, streams, [(c, trouble.of(c, now)) for c in consumers]

    async def _history(self, *about: Any) -> list[Row]:
        """How it was: of a stream, of a consumer, or of all; since when."""
        return await self.hg.run(statements.HISTORY, about)

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
