"""The lanes of a worker whose consumer is leased: heartbeats, and what happens when lanes come and go.

Two tasks: `beat` tells the database that the worker is alive and learns which lanes are its own; `turn` calls
`on_lanes_gained` and `on_lanes_lost`, which may take their time without endangering the lease.

A lane is *leased* by the last heartbeat's answer, and *open* from the end of `on_lanes_gained` to the beginning of
`on_lanes_lost`. Messages that arrive before their lane is open wait. Those of a lane that was lost are handed back
unless their handler has started; the lane is closed once these have finished.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from ..aio import AsyncConsumer
from ..database import statements
from ..errors import ConnectionFailed, InvalidArgument
from .inflight import Claimed, InFlight
from .options import LanesChanged, WorkerSettings
from .runners import Runners, in_thread

log = logging.getLogger("headgate.worker")

BEATS = 3  # heartbeats in a lease_time
# The worker gives up earlier than the database does, so that what it runs has ended when others begin.
SURE_FOR = 0.9

CallDatabase = Callable[
    [Callable[[AsyncConsumer], Awaitable[Any]]], Awaitable[Any]
]  # a call to the database; None: it is away


def is_leased(consumer: AsyncConsumer, settings: WorkerSettings) -> bool:
    """Whether a worker of the consumer needs leases; an error when it was made for another kind of consumer."""
    wanted = settings.leased
    if wanted is None and (settings.on_lanes_gained or settings.on_lanes_lost):
        wanted = True
    if wanted is not None and wanted != consumer.leased:
        raise InvalidArgument(
            f'consumer "{consumer.name}" is {"" if consumer.leased else "not "}leased, and the worker is for one that '
            f"is{'' if wanted else ' not'}",
            hint="leave out leased, on_lanes_gained and on_lanes_lost, or make a consumer with leased=True",
        )
    return consumer.leased


def refuse_leases(consumer: Any, settings: WorkerSettings) -> None:
    """An error where lanes would be leased: a worker of several consumers cannot say whose lanes come and go."""
    if consumer.leased or settings.leased or settings.on_lanes_gained or settings.on_lanes_lost:
        raise InvalidArgument(
            f'consumer "{consumer.name}" cannot be leased in a worker of several consumers',
            hint="give a leased consumer a worker of its own: consumer.worker()",
        )


class WorkerLeases:
    """Which lanes a worker may handle messages of, and until when that is sure."""

    def __init__(
        self,
        consumer: AsyncConsumer,
        settings: WorkerSettings,
        in_flight: InFlight,
        runners: Runners,
        wake: Callable[[], None],
        extra: dict[str, Any],
    ) -> None:
        # Workers of one process must differ, and so must one that is started again: what its former self had in flight
        # is then taken back after the lease_time, and not kept until its deadline.
        self.name = f"{consumer.worker_name}-{secrets.token_hex(3)}"
        self._slot = consumer.slot
        self._lease_time = consumer.lease_time.total_seconds()
        self._gained, self._lost = settings.on_lanes_gained, settings.on_lanes_lost
        self._in_flight = in_flight
        self._runners = runners
        self._wake = wake  # the receive loop: there is something to receive or to send
        self._extra = extra
        self._leased: frozenset[int] = frozenset()
        self._open: set[int] = set()
        self._given_up: set[int] = (
            set()
        )  # open lanes that were given up: closed even if they are leased again meanwhile
        self._early: list[Claimed] = []  # of lanes that are not open yet
        self._sure_until = -1.0
        self._timer: asyncio.TimerHandle | None = None
        self._changed, self._beat_now = asyncio.Event(), asyncio.Event()
        self._calling = asyncio.Lock()  # no heartbeat may reach the database after the worker has left
        self._left = self._has_said_so = self._closing = False
        runners.may_start = self.is_sure

    def is_sure(self) -> bool:
        """Whether this worker still counts as alive, by its own clock. From any thread."""
        return monotonic() < self._sure_until

    def admit(self, claims: list[Claimed]) -> list[Claimed]:
        """Of what was received, that which may run now."""
        ready, back = [], []
        for claimed in claims:
            slot = self._slot_of(claimed)
            if slot not in self._leased:
                back.append(claimed)
            elif slot in self._open and slot not in self._given_up:
                ready.append(claimed)
            else:
                self._early.append(claimed)
        if back:
            self._in_flight.give_back(back, lambda claimed: self._slot_of(claimed) not in self._leased)
        return ready

    def finished(self) -> None:
        """A message is no longer in flight."""
        if not self._open <= self._leased or self._given_up:
            self._changed.set()

    def give_up(self) -> None:
        """The lease has lapsed, or soon will: hands everything back, ends what runs, and joins again."""
        if self._left:
            return
        if self._sure_until >= 0:
            extra = {**self._extra, "lanes": len(self._leased)}
            log.warning("the leases are given up: the database was out of reach for too long", extra=extra)
        self._sure_until = -1.0
        self._leased = frozenset()
        self._given_up |= self._open
        self._in_flight.give_back(self._take_back(lambda claimed: True))
        self._runners.drop()
        self._changed.set()
        self._beat_now.set()
        self._wake()

    async def beat(self, call_database: CallDatabase) -> None:
        """Heartbeats until the worker leaves."""
        while True:
            self._beat_now.clear()
            async with self._calling:
                if self._left:
                    return
                sent = monotonic()
                lanes = await call_database(self._heartbeat)
                if lanes is not None:
                    self._hold(frozenset(lanes), sent)
            if lanes is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._beat_now.wait(), max(0, sent + self._lease_time / BEATS - monotonic()))

    async def turn(self) -> None:
        """Calls back when lanes come and go, one call at a time, until the worker is closed."""
        while True:
            busy = set() if self._closing else {self._slot(lane) for lane in self._in_flight.lanes()}
            gone = {
                slot for slot in self._open if (slot not in self._leased or slot in self._given_up) and slot not in busy
            }
            if gone:
                self._open -= gone
                self._given_up -= gone
                await self._call_back(self._lost, gone)
                continue
            new = self._leased - self._open
            if new and not self._left:
                await self._call_back(self._gained, new)
                self._open |= new
                early, self._early = self._early, []
                self._runners.put(self.admit(early))
                self._wake()
                continue
            if self._closing:
                return
            await self._changed.wait()
            self._changed.clear()

    async def leave(self, link: AsyncConsumer | None) -> None:
        """Hands the lanes over. What runs may finish: its deliveries keep others from these lanes meanwhile."""
        self._left = True
        if self._timer is not None:
            self._timer.cancel()
        self._beat_now.set()
        self._in_flight.give_back(self._take_back(lambda claimed: True))
        self._leased = frozenset()
        self._changed.set()
        async with self._calling:
            if link is not None and not self._has_said_so:
                await asyncio.wait_for(link.leave(worker=self.name), self._lease_time)
                self._has_said_so = True

    async def close(self, turning: asyncio.Task[None]) -> None:
        """Nothing is in flight any more: the last lanes are closed."""
        self._left = self._closing = True
        self._leased = frozenset()
        self._changed.set()
        await asyncio.wait([turning])

    def read(self, lease_time: float) -> None:
        """The consumer's lease_time as it is now: others may have changed it. Less, and the next heartbeat is due."""
        if lease_time < self._lease_time:
            self._beat_now.set()

    async def _heartbeat(self, link: AsyncConsumer) -> list[int]:
        """The lanes; and from now on, the lease_time by which this heartbeat counts."""
        consumer = (link.stream, link.name)
        try:
            call = link.hg.run(statements.BEAT, (*consumer, self.name, *consumer))
            lanes, self._lease_time = (await asyncio.wait_for(call, self._lease_time))[0]
        except TimeoutError:
            raise ConnectionFailed("the database does not answer a heartbeat") from None
        return list(lanes)

    def _hold(self, leased: frozenset[int], sent: float) -> None:
        """The answer to a heartbeat that was sent at that time."""
        was_sure, lost = self.is_sure(), self._leased - leased
        if not was_sure and self._leased:  # the answer came too late for what was held until then
            self.give_up()
            self._beat_now.clear()
            lost = frozenset()
        self._sure_until = sent + self._lease_time * SURE_FOR
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0, self._sure_until - monotonic()), self.give_up)
        if leased != self._leased:
            log.info("lanes leased", extra={**self._extra, "lanes": sorted(leased)})
            self._leased = leased
            self._changed.set()
        if lost:
            self._in_flight.give_back(self._take_back(lambda claimed: self._slot_of(claimed) in lost),
                                 lambda claimed: self._slot_of(claimed) in lost)  # fmt: skip
        if lost or not was_sure:
            self._wake()

    def _take_back(self, is_given: Callable[[Claimed], bool]) -> list[Claimed]:
        """What has not started and is to be given back."""
        back: list[Claimed] = []
        rest: list[Claimed] = []
        for claimed in self._runners.take_back():
            (back if is_given(claimed) else rest).append(claimed)
        self._runners.put(rest)
        back += [claimed for claimed in self._early if is_given(claimed)]
        self._early = [claimed for claimed in self._early if not is_given(claimed)]
        return back

    def _slot_of(self, claimed: Claimed) -> int:
        return self._slot(claimed.message.lane)

    async def _call_back(self, callback: LanesChanged | None, lanes: set[int] | frozenset[int]) -> None:
        if callback is None:
            return
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
            await callback(frozenset(lanes))
        else:
            await in_thread(callback, frozenset(lanes))
