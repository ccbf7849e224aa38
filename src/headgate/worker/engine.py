"""The engine of a worker: what it does with messages, from the first receive to the last ack.

Four things go on at once: the *pump* receives messages and settles finished ones, in the same call where it can; the
*keeper* extends unfinished deliveries, long before their deadline, and reads the consumers' settings again; the
*runners* call the handler; the *minder* hands back what waits too long for one, and looks whether the database answers.
Each consumer is a `Line`; where there are several, `Turns` says which of them a free handler serves, and how many
messages each may claim. Where lanes are leased, `Leases` adds heartbeats and says which messages may be handled.
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
from ..maintenance import PASSING, tend
from .connections import Database, required
from .handlers import dispatch, is_async, wrapped
from .inflight import FOREVER, HOLD, Outlook, Work
from .leases import Leases, is_leased, refuse_leases
from .line import Line
from .options import Retry, WorkerOptions, WorkerSettings, WorkerStats, checked_weights
from .runners import Runners, TaskRunners, ThreadRunners
from .turns import Turns

log = logging.getLogger("headgate.worker")

MINDING = 0.1  # seconds from one look of the minder to the next
KEEPING = 1.0  # seconds from one look of the keeper to the next, at the most
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
        self._lines = [
            Line(place, consumer, weight, self.settings, self._bind)
            for place, (consumer, weight) in enumerate(weights.items())
        ]
        for consumer in self.consumers if len(weights) > 1 else ():
            refuse_leases(consumer, self.settings)
        self._name = ", ".join(f"{consumer.stream}/{consumer.name}" for consumer in self.consumers)
        self._extra: dict[str, Any] = self._lines[0].extra if len(weights) == 1 else _about_all(self._lines)
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self.is_stopping = False
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
            self._turns = Turns([line.weight for line in self._lines], s.concurrency, clock)
        self._runners: Runners = kind(call, s.concurrency, s.timeout, self._finished, self._turns)
        for line in self._lines:
            line.begin(clock)
        self._clock = clock
        self._stopped_at = self._grace_end = FOREVER
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._nap_until = -1.0  # when the pump wakes by itself; -1 while it is awake
        self._leases: Leases | None = None  # where lanes are leased
        connections = 3 if self.consumer.leased else 2  # a heartbeat must not wait for maintenance
        self._database = Database(self.consumer.hg, connections, self._prepare, self._lose_links, self._extra)

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
        """What this worker has done, and what it has in hand."""
        running = self._runners.running()
        return WorkerStats.total((line.stats(running) for line in self._lines), self._all_reconnects())

    def stats_of(self, consumer: Any) -> WorkerStats:
        """What this worker has done with one of its consumers, and what it has in hand of it."""
        for line in self._lines:
            if line.consumer is consumer:
                return WorkerStats.total([line.stats(self._runners.running())], self._all_reconnects())
        raise InvalidArgument(f"{consumer!r} is not one of this worker's", hint="pass one that it was made with")

    def _all_reconnects(self) -> int:
        return self._reconnects + self._database.reconnects

    @property
    def _link(self) -> AsyncConsumer | None:
        """The first consumer, on the engine's own connections; None while the database is away."""
        return self._lines[0].link

    async def _prepare(self, own: AsyncHeadgate) -> None:
        """New connections: reads the consumers' settings as they are now."""
        links = [await line.open(own) for line in self._lines]
        for link in links if self._turns is not None else ():
            refuse_leases(link, self.settings)
        link = links[0]
        if is_leased(link, self.settings):
            if self._leases is None:
                line = self._lines[0]
                self._leases = Leases(link, self.settings, line.hand, self._runners, self._wake.set, self._extra)
            link.worker_name = self._leases.name
        for line, link in zip(self._lines, links, strict=True):
            line.use(link)
            line.idle_wait = HTTP_POLL if own.http is not None and self._turns is None else 0.0

    def _lose_links(self) -> None:
        for line in self._lines:
            line.link = None

    async def _reach(self, call: Callable[[AsyncConsumer], Awaitable[Any]]) -> Any:
        """The answer to a call; None when the database is away, after a pause."""
        link = self._link
        try:
            return await call(required(link))
        except PASSING as error:
            await self._recover(link, error)
            return None

    async def _recover(self, broken: AsyncConsumer | None, error: BaseException) -> None:
        await self._database.recover(None if broken is None else broken.hg, error)

    async def _pump(self) -> None:
        while not self._stop.is_set():
            has_called = False
            for place in range(1) if self._turns is None else self._turns.order():
                if not self._stop.is_set():
                    has_called |= await self._serve_line(self._lines[place])
            if not has_called and not self._stop.is_set():
                await self._nap(min(self._next_call(line) for line in self._lines))
        await self._drain()
        for line in self._lines:
            await line.note_timings()
        if self._leases is not None:
            await self._leases.close(self._turning)

    async def _serve_line(self, line: Line) -> bool:
        """Makes the call that is due for a consumer; False when none was."""
        if self._turns is not None and (excess := line.hand.excess(self._outlook(self._turns, line))):
            # it was alone before, and claimed for all handlers
            line.hand.give_back(self._turns.take_back(line.place, excess), lambda work: False)
        now, wanted, link = self._clock(), self._room(line), line.link
        is_due = line.hand.send_at <= now
        try:
            if wanted and (is_due or line.receive_at <= now):
                ready = await line.receive(required(link), wanted)
                self._runners.put(ready if self._leases is None else self._leases.admit(ready))
            elif is_due:
                await line.send(required(link))
            else:
                return False
        except PASSING as error:
            await self._recover(link, error)
        except NotJoined:
            if self._leases is None:
                raise
            self._leases.give_up()
        return True

    def _room(self, line: Line) -> int:
        """How many messages to ask for now."""
        if self._turns is None:
            line.hand.hung = self._runners.hung
            return 0 if self._leases is not None and not self._leases.is_sure() else line.hand.room()
        line.hand.hung = self._turns.hung = self._runners.hung
        room = line.hand.room(self._outlook(self._turns, line))
        if room and line.hand.has_given_back:  # for handlers that are free now, and no others
            room = min(room, max(0, self.settings.concurrency - len(self._runners.running())))
        if not room:
            line.is_eager = True  # others have the handlers: it is asked as soon as one is free
        return room

    def _outlook(self, turns: Turns, line: Line) -> Outlook:
        return turns.outlook(line.place, self.settings.most_claimed, is_given=self.settings.prefetch is not None)

    def _next_call(self, line: Line) -> float:
        return min(line.hand.send_at, line.receive_at if self._room(line) else FOREVER)

    def _bind(self, consumer: Any, message: AsyncMessage) -> Any:
        """The message as the handler gets it: on the connections of the handler's own consumer."""
        raise NotImplementedError

    async def _nap(self, until: float) -> None:
        """Sleeps until then, or until something is finished that cannot wait so long."""
        assert self._loop is not None
        self._wake.clear()
        self._nap_until = until
        timer = None if until == FOREVER else self._loop.call_at(until, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            self._nap_until = -1.0
            if timer is not None:
                timer.cancel()

    def _finished(self, work: Work, error: BaseException | None, seconds: float, is_running: bool = False) -> None:
        """The runners' report."""
        line = self._lines[work.line]
        if error is None:
            line.timings.note(work.message, seconds)
        if self._turns is not None:
            self._turns.finish(work, seconds)
        if (following := line.hand.finish(work, error, seconds, is_running=is_running)) is not None:
            self._runners.put([following])
        if self._leases is not None:
            self._leases.finished()
        if self._nap_until >= 0 and (
            line.hand.send_at < self._nap_until
            or any(n.is_eager and n.receive_at < self._nap_until and self._room(n) for n in self._lines)
        ):
            self._nap_until = -1.0
            self._wake.set()

    async def _drain(self) -> None:
        """Hands back what was not begun, waits for what runs, and sends the last acks."""
        for line in self._lines:
            line.hand.give_back(self._runners.take_back() if self._turns is None else self._turns.take_back(line.place))
        if self._leases is not None:
            with suppress(*PASSING, TimeoutError):  # if it cannot be said now, perhaps at the end
                await self._leases.leave(self._link)
        while left := [line for line in self._lines if line.hand.claimed or line.hand.send_at < FOREVER]:
            now = self._clock()
            if self._grace_end <= now and any(line.hand.claimed for line in left):
                self._runners.abandon()
            due = [line for line in left if line.hand.send_at <= now or not line.hand.claimed]
            if not due:
                until = self._grace_end if now < self._grace_end else now + 0.05
                await self._nap(min(*(line.hand.send_at for line in left), until))
            for line in due:
                link = line.link
                try:
                    await line.send(required(link), everything=not line.hand.claimed)
                except PASSING as error:
                    await self._recover(link, error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(*(line.ack_wait / 6 for line in self._lines), KEEPING))
            for line in self._lines:
                await line.note_timings()
                now, link = self._clock(), line.link
                try:
                    if due := line.due(now):
                        await line.extend(required(link), due, now, self._runners.running)
                    if link is not None and line.settings_at <= now:
                        await line.read_settings(link)
                        if self._leases is not None:
                            self._leases.read(link.lease_time.total_seconds())
                except PASSING as error:
                    await self._recover(link, error)

    async def _mind(self) -> None:
        hung = 0
        while True:
            await asyncio.sleep(MINDING)
            self._database.look()
            before = self._clock() - HOLD
            if hung > self._runners.hung:
                self._wake.set()  # one has ended after all: there is room
            hung = self._runners.hung
            if self.settings.prefetch is not None and hung < self.settings.concurrency:
                continue  # so many are to be held
            for line in self._lines:
                works = (
                    self._runners.take_overdue(before)
                    if self._turns is None
                    else self._turns.take_overdue(line.place, before)
                )
                line.hand.give_back_waiting(works)
                if works:
                    self._wake.set()

    async def _tend(self) -> None:
        """Maintenance: somebody has to, and workers are there."""
        with suppress(NotAllowed):  # this role may not: the owner's `headgate up`, or another worker, does it
            await tend(lambda: self._database.own, self._stop, **self._extra)


def _about_all(lines: list[Line]) -> dict[str, Any]:
    """The fields of log records about several consumers."""
    streams = dict.fromkeys(line.consumer.stream for line in lines)
    return {"stream": ", ".join(streams), "consumer": ", ".join(line.consumer.name for line in lines)}
