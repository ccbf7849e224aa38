"""One consumer of a worker: its calls to the database, what it has in hand, and what it counts.

The engine (`worker`) says when to call, and gives what was received to its runners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from . import statements
from .aio import AsyncConsumer, AsyncHeadgate, AsyncMessage, AsyncStream
from .errors import Error
from .worker_hand import FLUSH_AFTER, Delivery, Hand, Work
from .worker_options import WorkerSettings, WorkerStats, spread
from .worker_timings import Timings

SHORTEST_POLL, LONGEST_POLL, POLL_GROWTH = 0.001, 0.1, 1.5

Bind = Callable[[Any, AsyncMessage], Any]  # the message as the handler gets it, on its own consumer's connections


class Line:
    """A consumer that a worker serves."""

    def __init__(self, place: int, consumer: Any, weight: float, settings: WorkerSettings, bind: Bind) -> None:
        self.place = place  # among the worker's consumers
        self.consumer = consumer
        self.weight = weight
        self.extra = {"stream": consumer.stream, "consumer": consumer.name}  # of log records
        self._settings = settings
        self._bind = bind
        self.link: AsyncConsumer | None = None  # on the engine's own connections; None while the database is away
        self._received = self._acked = self._nacked = self._released = self._lost = 0
        self.hand = Hand(settings, lambda: 0.0, self.extra, place)
        self.begin(lambda: 0.0)

    def begin(self, clock: Callable[[], float]) -> None:
        """Empty-handed."""
        self._clock = clock
        self._lost += self.hand.lost
        self.hand = Hand(self._settings, clock, self.extra, self.place)
        self.timings = Timings(self._settings.timing)
        self.receive_at = clock()
        self._pause = SHORTEST_POLL
        self.is_eager = False  # there is more to receive, or may be, as soon as there is room for it

    def stats(self, running: Iterable[Work]) -> WorkerStats:
        """What it has done, and what is in hand."""
        now = sum(work.line == self.place for work in running)
        return WorkerStats(
            received=self._received,
            acked=self._acked,
            nacked=self._nacked,
            released=self._released,
            lost=self._lost + self.hand.lost,
            reconnects=0,
            running=now,
            waiting=max(0, self.hand.claimed - now),
        )

    async def open(self, own: AsyncHeadgate) -> AsyncConsumer:
        """The consumer on these connections, with its settings as they are now; `use` makes it the line's."""
        link = await AsyncStream(own, self.consumer.stream).consumer(self.consumer.name)
        link.worker_name = self.consumer.worker_name
        link.is_traced = False  # the handler's spans say it all
        return link

    def use(self, link: AsyncConsumer) -> None:
        """From now on."""
        self.link = link
        self.ack_wait = link.ack_wait.total_seconds()
        self.hand.ordered = link.order == "key"
        self.hand.has_backoff = link.backoff is not None

    async def receive(self, link: AsyncConsumer, wanted: int) -> list[Work]:
        """Receives up to so many, with the acks that are due; returns those that may run now."""
        hand = self.hand
        await self._send_unfinished(link)
        deadline = self._clock() + self.ack_wait  # of the database's clock it is a little later
        acks, messages = hand.collect()
        try:
            batch = await link.receive(wanted, acks=acks)
        except BaseException:
            hand.put_back(acks, messages)
            raise
        self._acked += messages
        got = len(batch)
        self._received += got
        self._pause = SHORTEST_POLL if got else min(self._pause * POLL_GROWTH, LONGEST_POLL)
        self.is_eager = got == wanted and not hand.ordered
        # in order, more can be had once the acks of these go along
        wait = 0 if self.is_eager else FLUSH_AFTER if got and hand.ordered else self._pause
        self.receive_at = self._clock() + wait
        return hand.take((self._bind(self.consumer, message) for message in batch), deadline)

    async def send(self, link: AsyncConsumer, *, everything: bool = False) -> None:
        """Sends what is due of acks, nacks and releases."""
        await self._send_unfinished(link)
        acks, messages = self.hand.collect(everything=everything)
        try:
            await link.ack(acks)
        except BaseException:
            self.hand.put_back(acks, messages)
            raise
        self._acked += messages

    async def _send_unfinished(self, link: AsyncConsumer) -> None:
        hand = self.hand
        if hand.releases:
            ids, hand.releases = hand.releases, []
            try:
                self._released += (await link.release(ids)).settled
            except BaseException:
                hand.releases += ids
                hand.send_by(0)
                raise
        while hand.nacks:
            nack, ids = hand.nacks.popitem()
            delay, is_spread, error = nack
            try:
                settled = await link.nack(ids, delay=spread(delay) if is_spread and delay else delay, error=error)
            except BaseException:
                hand.nacks.setdefault(nack, []).extend(ids)
                hand.send_by(0)
                raise
            self._nacked += settled.settled
            self._lost += settled.stale

    def due(self, now: float) -> list[Delivery]:
        """The deliveries whose deadline is to be moved."""
        return [d for d in self.hand.deliveries.values() if d.deadline - self.ack_wait / 2 <= now and not d.lost]

    async def extend(
        self, link: AsyncConsumer, due: list[Delivery], now: float, running: Callable[[], list[Work]]
    ) -> None:
        """Moves their deadlines."""
        if (await link.extend([d.id for d in due], self.ack_wait)).stale:
            for d in due:  # which ones? and is it gone, or has it been finished meanwhile?
                if d.left and (await link.extend([d.id], self.ack_wait)).stale and d.left:
                    self.hand.lose(d, running())
        for d in due:
            d.deadline = now + self.ack_wait

    async def note_timings(self) -> None:
        """Sends the samples."""
        if self.link is not None and (samples := self.timings.take()) is not None:
            with suppress(Error):  # it is a sample
                consumer = self.link
                await consumer.hg.run(statements.NOTE_TIMINGS, (consumer.stream, consumer.name, *samples))
