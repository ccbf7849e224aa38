"""The engine of a worker: what it does with messages, from the first receive to the last ack.

Four things go on at once: the *receive loop* receives messages and settles finished ones, in the same call where it
can; the *extend loop* extends unfinished deliveries, long before their deadline, and reads the consumers' settings
again; the *runners* call the handler; the *watch loop* hands back what waits too long for one, and looks whether the
database answers.
Each consumer is a `Subscription`; where there are several, `Turns` says which of them a free handler serves, and how
many messages each may claim. Where lanes are leased, `WorkerLeases` adds heartbeats and says which messages may be
handled.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Unpack

from .. import tracing
from ..aio import AsyncConsumer, AsyncHeadgate, AsyncMessage
from ..errors import InvalidArgument, NotAllowed, NotJoined
from ..maintenance import TRANSIENT_ERRORS, maintain_until
from .connections import Database, require_connection
from .handlers import dispatch, is_async, wrapped
from .inflight import FOREVER, HOLD_SECONDS, Claimed, ClaimLimits
from .leases import WorkerLeases, is_leased, refuse_leases
from .options import Retry, WorkerOptions, WorkerSettings, WorkerStats, checked_weights
from .runners import Runners, TaskRunners, ThreadRunners
from .subscription import Subscription
from .turns import Turns

log = logging.getLogger("headgate.worker")

WATCH_SECONDS = 0.1  # from one look of the watch loop to the next
EXTEND_SECONDS = 1.0  # from one look of the extend loop to the next, at the most
HTTP_POLL = 1.0  # seconds that an idle worker's receive may wait in the server: it holds up a stop


class Engine:
    """What a worker does while it runs."""

    consumer_type: ClassVar[type]
    _turning: asyncio.Task[None]  # where lanes are leased: says when they come and go

    def __init__(self, consumer: Any, handler: Any, **options: Unpack[WorkerOptions]) -> None:
        self.settings = WorkerSettings(**options)
        is_one = isinstance(consumer, self.consumer_type)
        weights = {consumer: 1.0} if is_one else checked_weights(consumer, self.consumer_type)
        self.consumers = tuple(weights)
        self.consumer = self.consumers[0]
        self.handler = handler
        handlers = handler if isinstance(handler, Mapping) else dict.fromkeys(weights, handler)
        if handlers.keys() != weights.keys():
            raise InvalidArgument(
                "the handlers and the weights are not of the same consumers",
                hint="pass one handler for all, or a dict with a handler for each of these consumers",
            )
        self.is_async = is_async(next(iter(handlers.values())))
        self._calls = {
            consumer: wrapped(call, self.settings.middleware, self.is_async) for consumer, call in handlers.items()
        }
        if handler is not handlers:
            functools.update_wrapper(self, handler, updated=())
        self._subscriptions = [
            Subscription(index, consumer, weight, self.settings, self._bind)
            for index, (consumer, weight) in enumerate(weights.items())
        ]
        for consumer in self.consumers if len(weights) > 1 else ():
            refuse_leases(consumer, self.settings)
        self._name = ", ".join(f"{consumer.stream}/{consumer.name}" for consumer in self.consumers)
        self._extra: dict[str, Any] = (
            self._subscriptions[0].extra if len(weights) == 1 else _about_all(self._subscriptions)
        )
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self.is_stopping = False
        self._has_run = False  # or runs
        self._reconnects = 0  # in former runs
        self._begin(lambda: 0.0)

    def _begin(self, clock: Callable[[], float]) -> None:
        """Empty-handed."""
        s = self.settings
        kind: type[TaskRunners] | type[ThreadRunners] = TaskRunners if self.is_async else ThreadRunners
        calls = self._calls
        if tracing.is_on():
            calls = {c: tracing.handled(call, c.stream, c.name, self.is_async, Retry) for c, call in calls.items()}
        call = self._for_thread(calls[self.consumer] if len(calls) == 1 else functools.partial(dispatch, calls))
        self._turns: Turns | None = None  # where there are several consumers
        if len(calls) > 1:
            self._turns = Turns([subscription.weight for subscription in self._subscriptions], s.concurrency, clock)
        self._runners: Runners = kind(call, s.concurrency, s.timeout, self._finished, self._turns)
        for subscription in self._subscriptions:
            subscription.begin(clock)
        self._clock = clock
        self._stopped_at = self._grace_end = FOREVER
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._sleeping_until = -1.0  # when the receive loop wakes by itself; -1 while it is awake
        self._leases: WorkerLeases | None = None  # where lanes are leased
        connections = 3 if self.consumer.leased else 2  # a heartbeat must not wait for maintenance
        self._database = Database(self.consumer.hg, connections, self._prepare, self._clear_links, self._extra)

    def _for_thread(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What the runners call."""
        return call

    def __call__(self, message: Any) -> Any:
        """Calls the handler, without the worker around it."""
        handler = self.handler[message._consumer] if isinstance(self.handler, Mapping) else self.handler
        return handler(message)

    def __repr__(self) -> str:
        consumers = repr(self.consumer if len(self.consumers) == 1 else list(self.consumers))
        return f"{type(self).__name__}({consumers}, {getattr(self.handler, '__qualname__', self.handler)!r})"

    @property
    def stats(self) -> WorkerStats:
        """What this worker has done, and what it has in flight."""
        running = self._runners.running()
        return WorkerStats.total(
            (subscription.stats(running) for subscription in self._subscriptions), self._all_reconnects()
        )

    def stats_of(self, consumer: Any) -> WorkerStats:
        """What this worker has done with one of its consumers, and what it has in flight of it."""
        for subscription in self._subscriptions:
            if subscription.consumer is consumer:
                return WorkerStats.total([subscription.stats(self._runners.running())], self._all_reconnects())
        raise InvalidArgument(f"{consumer!r} is not one of this worker's", hint="pass one that it was made with")

    def _all_reconnects(self) -> int:
        return self._reconnects + self._database.reconnects

    @property
    def _link(self) -> AsyncConsumer | None:
        """The first consumer, on the engine's own connections; None while the database is away."""
        return self._subscriptions[0].link

    async def _prepare(self, own: AsyncHeadgate) -> None:
        """New connections: reads the consumers' settings as they are now."""
        links = [await subscription.open(own) for subscription in self._subscriptions]
        for link in links if self._turns is not None else ():
            refuse_leases(link, self.settings)
        link = links[0]
        if is_leased(link, self.settings):
            if self._leases is None:
                subscription = self._subscriptions[0]
                self._leases = WorkerLeases(
                    link, self.settings, subscription.in_flight, self._runners, self._wake.set, self._extra
                )
            link.worker_name = self._leases.name
        for subscription, link in zip(self._subscriptions, links, strict=True):
            subscription.use(link)
            subscription.idle_wait = HTTP_POLL if own.http is not None and self._turns is None else 0.0

    def _clear_links(self) -> None:
        for subscription in self._subscriptions:
            subscription.link = None

    async def _call_database(self, call: Callable[[AsyncConsumer], Awaitable[Any]]) -> Any:
        """The answer to a call; None when the database is away, after a pause."""
        link = self._link
        try:
            return await call(require_connection(link))
        except TRANSIENT_ERRORS as error:
            await self._recover(link, error)
            return None

    async def _recover(self, broken: AsyncConsumer | None, error: BaseException) -> None:
        await self._database.recover(None if broken is None else broken.hg, error)

    async def _receive_loop(self) -> None:
        while not self._stop.is_set():
            has_called = False
            for index in range(1) if self._turns is None else self._turns.order():
                if not self._stop.is_set():
                    has_called |= await self._serve_subscription(self._subscriptions[index])
            if not has_called and not self._stop.is_set():
                await self._sleep_until(min(self._next_call(subscription) for subscription in self._subscriptions))
        await self._drain()
        for subscription in self._subscriptions:
            await subscription.note_timings()
        if self._leases is not None:
            await self._leases.close(self._turning)

    async def _serve_subscription(self, subscription: Subscription) -> bool:
        """Makes the call that is due for a consumer; False when none was."""
        if self._turns is not None and (
            excess := subscription.in_flight.excess(self._claim_limits(self._turns, subscription))
        ):
            # it was alone before, and claimed for all handlers
            subscription.in_flight.give_back(self._turns.take_back(subscription.index, excess), lambda claimed: False)
        now, wanted, link = self._clock(), self._room(subscription), subscription.link
        is_due = subscription.in_flight.send_at <= now
        try:
            if wanted and (is_due or subscription.receive_at <= now):
                ready = await subscription.receive(require_connection(link), wanted)
                self._runners.put(ready if self._leases is None else self._leases.admit(ready))
            elif is_due:
                await subscription.send(require_connection(link))
            else:
                return False
        except TRANSIENT_ERRORS as error:
            await self._recover(link, error)
        except NotJoined:
            if self._leases is None:
                raise
            self._leases.give_up()
        return True

    def _room(self, subscription: Subscription) -> int:
        """How many messages to ask for now."""
        if self._turns is None:
            subscription.in_flight.hung = self._runners.hung
            return 0 if self._leases is not None and not self._leases.is_sure() else subscription.in_flight.room()
        subscription.in_flight.hung = self._turns.hung = self._runners.hung
        room = subscription.in_flight.room(self._claim_limits(self._turns, subscription))
        if room and subscription.in_flight.has_given_back:  # for handlers that are free now, and no others
            room = min(room, max(0, self.settings.concurrency - len(self._runners.running())))
        if not room:
            subscription.is_eager = True  # others have the handlers: it is asked as soon as one is free
        return room

    def _claim_limits(self, turns: Turns, subscription: Subscription) -> ClaimLimits:
        return turns.claim_limits(
            subscription.index, self.settings.most_claimed, is_given=self.settings.prefetch is not None
        )

    def _next_call(self, subscription: Subscription) -> float:
        return min(subscription.in_flight.send_at, subscription.receive_at if self._room(subscription) else FOREVER)

    def _bind(self, consumer: Any, message: AsyncMessage) -> Any:
        """The message as the handler gets it: on the connections of the handler's own consumer."""
        raise NotImplementedError

    async def _sleep_until(self, until: float) -> None:
        """Sleeps until then, or until something is finished that cannot wait so long."""
        assert self._loop is not None
        self._wake.clear()
        self._sleeping_until = until
        timer = None if until == FOREVER else self._loop.call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            self._sleeping_until = -1.0
            if timer is not None:
                timer.cancel()

    def _finished(
        self, claimed: Claimed, error: BaseException | None, seconds: float, is_running: bool = False
    ) -> None:
        """The runners' report."""
        subscription = self._subscriptions[claimed.index]
        if error is None:
            subscription.timings.note(claimed.message, seconds)
        if self._turns is not None:
            self._turns.finish(claimed, seconds)
        if (following := subscription.in_flight.finish(claimed, error, seconds, is_running=is_running)) is not None:
            self._runners.put([following])
        if self._leases is not None:
            self._leases.finished()
        if self._sleeping_until >= 0 and (
            subscription.in_flight.send_at < self._sleeping_until
            or any(n.is_eager and n.receive_at < self._sleeping_until and self._room(n) for n in self._subscriptions)
        ):
            self._sleeping_until = -1.0
            self._wake.set()

    async def _drain(self) -> None:
        """Hands back what was not started, waits for what runs, and sends the last acks."""
        for subscription in self._subscriptions:
            subscription.in_flight.give_back(
                self._runners.take_back() if self._turns is None else self._turns.take_back(subscription.index)
            )
        if self._leases is not None:
            with suppress(*TRANSIENT_ERRORS, TimeoutError):  # if it cannot be said now, perhaps at the end
                await self._leases.leave(self._link)
        while left := [
            subscription
            for subscription in self._subscriptions
            if subscription.in_flight.count or subscription.in_flight.send_at < FOREVER
        ]:
            now = self._clock()
            if self._grace_end <= now and any(subscription.in_flight.count for subscription in left):
                self._runners.abandon()
            due = [
                subscription
                for subscription in left
                if subscription.in_flight.send_at <= now or not subscription.in_flight.count
            ]
            if not due:
                until = self._grace_end if now < self._grace_end else now + 0.05
                await self._sleep_until(min(*(subscription.in_flight.send_at for subscription in left), until))
            for subscription in due:
                link = subscription.link
                try:
                    await subscription.send(require_connection(link), everything=not subscription.in_flight.count)
                except TRANSIENT_ERRORS as error:
                    await self._recover(link, error)

    async def _extend_loop(self) -> None:
        while True:
            await asyncio.sleep(
                min(*(subscription.ack_wait / 6 for subscription in self._subscriptions), EXTEND_SECONDS)
            )
            for subscription in self._subscriptions:
                await subscription.note_timings()
                now, link = self._clock(), subscription.link
                try:
                    if due := subscription.due(now):
                        await subscription.extend(require_connection(link), due, now, self._runners.running)
                    if link is not None and subscription.settings_at <= now:
                        await subscription.read_settings(link)
                        if self._leases is not None:
                            self._leases.read(link.lease_time.total_seconds())
                except TRANSIENT_ERRORS as error:
                    await self._recover(link, error)

    async def _watch_loop(self) -> None:
        hung = 0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._database.look()
            before = self._clock() - HOLD_SECONDS
            if hung > self._runners.hung:
                self._wake.set()  # one has ended after all: there is room
            hung = self._runners.hung
            if self.settings.prefetch is not None and hung < self.settings.concurrency:
                continue  # so many are to be held
            for subscription in self._subscriptions:
                claims = (
                    self._runners.take_overdue(before)
                    if self._turns is None
                    else self._turns.take_overdue(subscription.index, before)
                )
                subscription.in_flight.give_back_waiting(claims)
                if claims:
                    self._wake.set()

    async def _maintain(self) -> None:
        """Maintenance: somebody has to, and workers are there."""
        with suppress(NotAllowed):  # this role may not: the owner's `headgate up`, or another worker, does it
            await maintain_until(lambda: self._database.own, self._stop, **self._extra)


def _about_all(subscriptions: list[Subscription]) -> dict[str, Any]:
    """The fields of log records about several consumers."""
    streams = dict.fromkeys(subscription.consumer.stream for subscription in subscriptions)
    return {
        "stream": ", ".join(streams),
        "consumer": ", ".join(subscription.consumer.name for subscription in subscriptions),
    }
