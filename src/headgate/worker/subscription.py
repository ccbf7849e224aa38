"""One consumer of a worker: its calls to the database, what it has in flight, and what it counts.

The engine (`worker`) says when to call, and gives what was received to its runners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

from ..aio import AsyncConsumer, AsyncHeadgate, AsyncMessage, AsyncStream
from ..database import statements
from ..errors import Error
from ..service import spread
from .inflight import FLUSH_AFTER, Acks, Claimed, ClaimedDelivery, InFlight
from .options import WorkerSettings, WorkerStats
from .timings import Timings

log = logging.getLogger("headgate.worker")

SHORTEST_POLL, LONGEST_POLL, POLL_GROWTH = 0.001, 0.1, 1.5
SAFE = 1.0  # seconds before its deadline (a quarter of ack_wait, if that is less) in which an ack may go with a receive
IN_TIME = 0.9  # of ack_wait: how long a message may be started after it was received, or extended
READ_SETTINGS = 2.0  # seconds after which the consumer's settings are read again: others may have changed them

Bind = Callable[[Any, AsyncMessage], Any]  # the message as the handler gets it, on its own consumer's connections


class Subscription:
    """A consumer that a worker receives from."""

    def __init__(self, index: int, consumer: Any, weight: float, settings: WorkerSettings, bind: Bind) -> None:
        self.index = index  # among the worker's consumers
        self.consumer = consumer
        self.weight = weight
        self.extra = {"stream": consumer.stream, "consumer": consumer.name}  # of log records
        self._settings = settings
        self._bind = bind
        self.link: AsyncConsumer | None = None  # on the engine's own connections; None while the database is away
        self._received = self._acked = self._nacked = self._released = self._lost = self._settled = 0
        self.in_flight = InFlight(settings, lambda: 0.0, self.extra, index)
        self.begin(lambda: 0.0)

    def begin(self, clock: Callable[[], float]) -> None:
        """Empty-handed."""
        self._clock = clock
        self._lost += self.in_flight.lost + self.in_flight.unsettled()  # what its last run left behind
        self._released += self.in_flight.released
        self._settled += self.in_flight.settled
        self.in_flight = InFlight(self._settings, clock, self.extra, self.index)
        self.timings = Timings(self._settings.timing)
        self.receive_at = clock()
        self._pause = SHORTEST_POLL
        self.idle_wait = 0.0  # seconds that a call may wait for messages while there is nothing else to do
        self.is_eager = False  # there is more to receive, or may be, as soon as there is room for it

    def end(self) -> int:
        """The run has ended; returns how many messages it could not settle."""
        unsettled = self.in_flight.unsettled()
        self.begin(self._clock)
        return unsettled

    def stats(self, running: Iterable[Claimed]) -> WorkerStats:
        """What it has done, and what is in flight."""
        now = sum(claimed.index == self.index for claimed in running)
        return WorkerStats(
            received=self._received,
            acked=self._acked,
            nacked=self._nacked,
            released=self._released + self.in_flight.released,
            lost=self._lost + self.in_flight.lost,
            settled=self._settled + self.in_flight.settled,
            reconnects=0,
            running=now,
            waiting=max(0, self.in_flight.count - now),
        )

    async def open(self, own: AsyncHeadgate) -> AsyncConsumer:
        """The consumer on these connections, with its settings as they are now; `use` makes it the subscription's."""
        link = await AsyncStream(own, self.consumer.stream).consumer(self.consumer.name)
        link.worker_name = self.consumer.worker_name
        link.is_traced = False  # the handler's spans say it all
        return link

    def use(self, link: AsyncConsumer) -> None:
        """From now on."""
        self.link = link
        self.settings_at = self._clock() + READ_SETTINGS
        self.ack_wait = link.ack_wait.total_seconds()
        self.in_flight.ordered = link.order == "key"
        self.in_flight.has_backoff = link.backoff is not None

    async def read_settings(self, link: AsyncConsumer) -> None:
        """Reads the consumer's settings again, and goes by them from now on."""
        now = await self.open(link.hg)
        if (now.ack_wait, now.backoff, now.lease_time) != (link.ack_wait, link.backoff, link.lease_time):
            log.info("settings of the consumer have changed", extra={**self.extra, "ack_wait": str(now.ack_wait)})
            link.ack_wait, link.backoff, link.lease_time = now.ack_wait, now.backoff, now.lease_time
        if self.link is link:
            self.use(link)

    async def receive(self, link: AsyncConsumer, wanted: int) -> list[Claimed]:
        """Receives up to so many, with the acks that are due; returns those that may run now."""
        in_flight = self.in_flight
        await self._send_unfinished(link)
        acks = in_flight.collect()
        if acks.ids and acks.deadline < self._clock() + min(SAFE, self.ack_wait / 4):
            await self._ack(link, acks)  # a receive does not say which of its acks were stale
            acks = Acks()
        deadline = self._clock() + self.ack_wait  # of the database's clock it is a little later
        start_by = self._start_by()
        in_flight.sending = acks.messages
        try:
            # (the ack_wait that this worker knows: another one would pass before it extends)
            idle = 0.0 if in_flight.count or acks.ids else self.idle_wait  # (how old acks are is judged by its answer)
            batch = await link.receive(wanted, acks=acks.ids, ack_wait=self.ack_wait, wait=idle)
        except BaseException:
            in_flight.put_back(acks)
            raise
        finally:
            in_flight.sending = 0
        if self._clock() < acks.deadline:
            self._acked += acks.messages
        else:  # the database has taken its time
            self._lose(acks.messages)
        got = len(batch)
        self._received += got
        self._pause = SHORTEST_POLL if got else min(self._pause * POLL_GROWTH, LONGEST_POLL)
        self.is_eager = got == wanted and not in_flight.ordered
        # in order, more can be had once the acks of these go along
        wait = 0 if self.is_eager else FLUSH_AFTER if got and in_flight.ordered else self._pause
        self.receive_at = self._clock() + wait
        return in_flight.take((self._bind(self.consumer, message) for message in batch), deadline, start_by)

    async def send(self, link: AsyncConsumer, *, everything: bool = False) -> None:
        """Sends what is due of acks, nacks and releases."""
        await self._send_unfinished(link)
        await self._ack(link, self.in_flight.collect(everything=everything))

    async def _ack(self, link: AsyncConsumer, acks: Acks) -> None:
        self.in_flight.sending = acks.messages
        try:
            settled = (await link.ack(acks.ids)).settled
        except BaseException:
            self.in_flight.put_back(acks)
            raise
        finally:
            self.in_flight.sending = 0
        self._acked += settled
        self._lose(acks.messages - settled)

    def _lose(self, messages: int) -> None:
        if messages > 0:
            self._lost += messages
            extra = {**self.extra, "messages": messages}
            log.warning("%s acks came too late, or are not known to have come", messages, extra=extra)

    async def _send_unfinished(self, link: AsyncConsumer) -> None:
        in_flight = self.in_flight
        if in_flight.releases:
            ids, in_flight.releases = in_flight.releases, []
            in_flight.sending = len(ids)
            try:
                released = (await link.release(ids)).settled
            except BaseException:
                in_flight.releases += ids
                in_flight.send_by(0)
                raise
            finally:
                in_flight.sending = 0
            self._released += released
            self._lost += len(ids) - released
        while in_flight.nacks:
            nack, ids = in_flight.nacks.popitem()
            delay, is_spread, error = nack
            in_flight.sending = len(ids)
            try:
                settled = await link.nack(ids, delay=spread(delay) if is_spread and delay else delay, error=error)
            except BaseException:
                in_flight.nacks.setdefault(nack, []).extend(ids)
                in_flight.send_by(0)
                raise
            finally:
                in_flight.sending = 0
            self._nacked += settled.settled
            self._lost += len(ids) - settled.settled

    def due(self, now: float) -> list[ClaimedDelivery]:
        """The deliveries whose deadline is to be moved."""
        return [d for d in self.in_flight.deliveries.values() if d.deadline - self.ack_wait / 2 <= now and not d.lost]

    async def extend(
        self, link: AsyncConsumer, due: list[ClaimedDelivery], now: float, running: Callable[[], list[Claimed]]
    ) -> None:
        """Moves their deadlines."""
        start_by = self._start_by()
        if (await link.extend([d.id for d in due], self.ack_wait)).stale:
            for d in due:  # which ones? and is it gone, or has it been finished meanwhile?
                if d.left and (await link.extend([d.id], self.ack_wait)).stale and d.left:
                    self.in_flight.lose(d, running())
        for d in due:
            d.deadline, d.start_by = now + self.ack_wait, start_by

    def _start_by(self) -> float:
        return monotonic() + self.ack_wait * IN_TIME

    async def note_timings(self) -> None:
        """Sends the samples."""
        if self.link is not None and (samples := self.timings.take()) is not None:
            with suppress(Error):  # it is a sample
                consumer = self.link
                await consumer.hg.run(statements.NOTE_TIMINGS, (consumer.stream, consumer.name, *samples))
