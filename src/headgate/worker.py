"""Workers: a handler that is called for each message of a consumer, or of several, until it is told to stop.

One engine for both flavours. It runs on asyncio with connections of its own, so that what handlers do with theirs never
holds up an ack or an extension; a sync worker gives it an event loop in the calling thread, and its handlers threads.

Three things go on at once: the *pump* receives messages and settles finished ones, in the same call where it can; the
*keeper* extends unfinished deliveries, long before their deadline; the *runners* call the handler. Each consumer is a
`Line`; where there are several, `Turns` says which of them a free handler serves, and how many messages each may claim.
Where lanes are leased, `Leases` adds heartbeats and says which messages may be handled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Unpack

from . import tracing
from .aio import AsyncConsumer, AsyncHeadgate, AsyncMessage
from .errors import Conflict, ConnectionFailed, Error, InvalidArgument, NotAllowed, NotJoined
from .maintenance import PASSING, tend
from .sync import Consumer, Headgate, Message
from .worker_hand import FOREVER, Outlook, Work
from .worker_leases import Leases, is_leased, refuse_leases
from .worker_line import SHORTEST_POLL, Line
from .worker_options import Retry, WorkerOptions, WorkerSettings, WorkerStats, checked_weights, error_text
from .worker_runners import Runners, TaskRunners, ThreadRunners
from .worker_signals import listen, unlisten
from .worker_turns import Turns

log = logging.getLogger("headgate.worker")

SHORTEST_RETRY, LONGEST_RETRY = 0.1, 5.0
LAST_WORDS = 5.0  # seconds to get the last acks to a database that is away when the worker stops


class _Engine:
    """What `Worker` and `AsyncWorker` have in common: everything but how it is started."""

    consumer_type: ClassVar[type]

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
        self.is_async = _is_async(next(iter(handlers.values())))
        self._calls = {consumer: self._wrapped(call) for consumer, call in handlers.items()}
        if handler is not handlers:
            functools.update_wrapper(self, handler, updated=())
        self._lines = [
            Line(place, consumer, weight, self.settings, self._bind)
            for place, (consumer, weight) in enumerate(weights.items())
        ]
        for consumer in self.consumers if len(weights) > 1 else ():
            refuse_leases(consumer, self.settings)
        self._extra: dict[str, Any] = self._lines[0].extra if len(weights) == 1 else _about_all(self._lines)
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._own: AsyncHeadgate | None = None  # the engine's own connections; None while the database is away
        self.is_stopping = False
        self._reconnects = 0
        self._begin(lambda: 0.0)

    def _wrapped(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A handler with the middleware around it."""
        if not callable(call):
            raise InvalidArgument(f"{call!r} is not a handler", hint="pass a function of one message")
        if _is_async(call) != self.is_async:
            raise InvalidArgument(
                "the handlers are not of one kind", hint="make all coroutine functions, or all plain functions"
            )
        for layer in reversed(self.settings.middleware):
            if _is_async(layer) != self.is_async:
                raise InvalidArgument(
                    f"the middleware {layer!r} and the handler are not of one kind",
                    hint="make both coroutine functions, or both plain functions",
                )
            call = functools.partial(_through, layer, call)
        return call

    def _begin(self, clock: Callable[[], float]) -> None:
        """Empty-handed."""
        s = self.settings
        kind: type[TaskRunners] | type[ThreadRunners] = TaskRunners if self.is_async else ThreadRunners
        calls = self._calls
        if tracing.is_on():
            calls = {c: tracing.handled(call, c.stream, c.name, self.is_async, Retry) for c, call in calls.items()}
        call = calls[self.consumer] if len(calls) == 1 else functools.partial(_dispatch, calls)
        self._turns: Turns | None = None  # where there are several consumers
        if len(calls) > 1:
            self._turns = Turns([line.weight for line in self._lines], s.concurrency, clock)
        self._runners: Runners = kind(call, s.concurrency, s.timeout, self._finished, self._turns)
        for line in self._lines:
            line.begin(clock)
        self._clock = clock
        self._grace = s.grace
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._nap_until = -1.0  # when the pump wakes by itself; -1 while it is awake
        self._leases: Leases | None = None  # where lanes are leased
        self._recovering = asyncio.Lock()
        self._retry_after = SHORTEST_RETRY
        self._away = False

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
        return WorkerStats.total((line.stats(running) for line in self._lines), self._reconnects)

    def stats_of(self, consumer: Any) -> WorkerStats:
        """What this worker has done with one of its consumers, and what it has in hand of it."""
        for line in self._lines:
            if line.consumer is consumer:
                return WorkerStats.total([line.stats(self._runners.running())], self._reconnects)
        raise InvalidArgument(f"{consumer!r} is not one of this worker's", hint="pass one that it was made with")

    def stop(self, grace: float | None = None) -> None:
        """Ends `run`: running handlers may finish within the grace, the rest is handed back. From any thread."""
        self.is_stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._stop_now, grace)

    def _stop_now(self, grace: float | None) -> None:
        if grace is not None:
            self._grace = grace
        self._stop.set()
        self._wake.set()

    async def _serve(self) -> None:
        if self._loop is not None:
            raise Error("this worker is running already", hint="make another one for the same consumer")
        self._loop = asyncio.get_running_loop()
        self._begin(self._loop.time)
        is_listening = self.settings.signals and threading.current_thread() is threading.main_thread()
        tasks: list[asyncio.Task[None]] = []
        try:
            if is_listening:
                listen(self)
            await self._open()
            self._runners.start()
            if self.is_stopping:
                self._stop.set()
            log.info("worker started", extra=self._extra)
            pump, keeper = asyncio.create_task(self._pump()), asyncio.create_task(self._keep())
            tasks = [pump, keeper, asyncio.create_task(self._tend()), *self._runners.tasks]
            if self._leases is not None:
                self._turning = asyncio.create_task(self._leases.turn())
                tasks += [asyncio.create_task(self._leases.beat(self._reach)), self._turning]
            try:
                # the pump ends when the worker is told to stop, the others by a fault (or cancelled, when time is up)
                pending = set(tasks)
                while not pump.done():
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    if any(not task.cancelled() and task.exception() for task in done):
                        break
            except asyncio.CancelledError:
                self._stop_now(0)
                await asyncio.wait([pump], timeout=LAST_WORDS)
                raise
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            if is_listening:
                unlisten(self)
            self._runners.close()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1)
            if self._own is not None:
                if self._leases is not None:
                    with suppress(Exception):  # then the others wait for the lease_time
                        await self._leases.leave(self._link)
                await self._close()
            self._loop, self.is_stopping = None, False
            log.info("worker stopped", extra=self._extra)

    @property
    def _link(self) -> AsyncConsumer | None:
        """The first consumer, on the engine's own connections; None while the database is away."""
        return self._lines[0].link

    async def _open(self) -> None:
        """Connects, and reads the consumers' settings as they are now."""
        hg = self.consumer.hg
        connections = 3 if self.consumer.leased else 2  # a heartbeat must not wait for maintenance
        own = AsyncHeadgate(hg.url, max_connections=connections, timeout=hg._timeout, pooler=hg._pooler)
        await own.open(migrate=False)
        try:
            links = [await line.open(own) for line in self._lines]
            for link in links if self._turns is not None else ():
                refuse_leases(link, self.settings)
            link = links[0]
            if is_leased(link, self.settings):
                if self._leases is None:
                    line = self._lines[0]
                    self._leases = Leases(link, self.settings, line.hand, self._runners, self._wake.set, self._extra)
                link.worker_name = self._leases.name
        except BaseException:
            await own.close()
            raise
        self._own = own
        for line, link in zip(self._lines, links, strict=True):
            line.use(link)

    async def _close(self) -> None:
        own, self._own = self._own, None
        for line in self._lines:
            line.link = None
        if own is not None:
            await own.close()

    async def _reach(self, call: Callable[[AsyncConsumer], Awaitable[Any]]) -> Any:
        """The answer to a call; None when the database is away, after a pause."""
        link = self._link
        try:
            return await call(_up(link))
        except PASSING as error:
            await self._recover(link, error)
            return None

    async def _recover(self, broken: AsyncConsumer | None, error: BaseException) -> None:
        """After a failure that passes: waits, and tries once to connect again."""
        if isinstance(error, Conflict):
            await asyncio.sleep(SHORTEST_POLL)
            return
        async with self._recovering:
            if self._own is not (broken.hg if broken is not None else None):
                return  # the other task has been here
            if not self._away:
                self._away = True
                log.warning("the database is away", extra={**self._extra, "error": error_text(error)})
            with suppress(Exception):
                await self._close()
            pause = self._retry_after
            if self.is_stopping:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)
            try:
                await self._open()
            except PASSING:
                self._retry_after = min(pause * 2, LONGEST_RETRY)
            else:
                self._retry_after, self._away = SHORTEST_RETRY, False
                self._reconnects += 1
                log.info("the database is back", extra=self._extra)

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
                ready = await line.receive(_up(link), wanted)
                self._runners.put(ready if self._leases is None else self._leases.admit(ready))
            elif is_due:
                await line.send(_up(link))
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
            return 0 if self._leases is not None and not self._leases.is_sure() else line.hand.room()
        room = line.hand.room(self._outlook(self._turns, line))
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

    def _finished(self, work: Work, error: BaseException | None, seconds: float) -> None:
        """The runners' report."""
        line = self._lines[work.line]
        if error is None:
            line.timings.note(work.message, seconds)
        if self._turns is not None:
            self._turns.finish(work, seconds)
        if (following := line.hand.finish(work, error, seconds)) is not None:
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
        stopped = self._clock()
        if self._leases is not None:
            with suppress(*PASSING, TimeoutError):  # if it cannot be said now, perhaps at the end
                await self._leases.leave(self._link)
        for line in self._lines:
            line.hand.give_back(self._runners.take_back() if self._turns is None else self._turns.take_back(line.place))
        while left := [line for line in self._lines if line.hand.claimed or line.hand.send_at < FOREVER]:
            now, end = self._clock(), stopped + self._grace
            if end <= now and any(line.hand.claimed for line in left):
                self._runners.abandon()
            due = [line for line in left if line.hand.send_at <= now or not line.hand.claimed]
            if not due:
                await self._nap(min(*(line.hand.send_at for line in left), end if now < end else now + 0.05))
            for line in due:
                link = line.link
                try:
                    await line.send(_up(link), everything=not line.hand.claimed)
                except PASSING as error:
                    if end + LAST_WORDS < now:
                        log.warning("the last acks could not be sent: their messages come again", extra=line.extra)
                        return
                    await self._recover(link, error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(*(line.ack_wait / 6 for line in self._lines), 5))
            for line in self._lines:
                await line.note_timings()
                now, link = self._clock(), line.link
                if due := line.due(now):
                    try:
                        await line.extend(_up(link), due, now, self._runners.running)
                    except PASSING as error:
                        await self._recover(link, error)

    async def _tend(self) -> None:
        """Maintenance: somebody has to, and workers are there."""
        with suppress(NotAllowed):  # this role may not: the owner's `headgate up`, or another worker, does it
            await tend(lambda: self._own, self._stop, **self._extra)


class AsyncWorker(_Engine):
    """A handler and whose messages it gets: `await worker.run()`. Made by `consumer.worker()` or `hg.worker()`."""

    consumer_type = AsyncConsumer

    async def run(self) -> None:
        """Handles messages until `stop()`, SIGTERM or SIGINT; a second signal does not wait for running handlers."""
        await self._serve()

    def _bind(self, consumer: Any, message: AsyncMessage) -> Any:
        message._consumer = consumer
        return message


class Worker(_Engine):
    """A handler and whose messages it gets: `worker.run()`. Made by `consumer.worker()` or `hg.worker()`."""

    consumer_type = Consumer

    def __init__(
        self,
        consumer: Consumer | Mapping[Consumer, float],
        handler: Callable[[Message], Any] | Mapping[Consumer, Callable[[Message], Any]],
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(consumer, handler, **options)
        if self.is_async:
            raise InvalidArgument(
                "a coroutine function cannot be the handler of a sync worker",
                hint="use headgate.connect_async(), or a plain function",
            )

    def run(self) -> None:
        """Handles messages until `stop()`, SIGTERM or SIGINT; a second signal does not wait for running handlers."""
        asyncio.run(self._serve())

    def _bind(self, consumer: Any, m: AsyncMessage) -> Any:
        return Message(consumer, (m.ack_id, m.seq, m.key, m.text, m.headers, m.channel, m.attempt, m.created_at))


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _through(layer: Callable[..., Any], call_next: Callable[[Any], Any], message: Any) -> Any:
    return layer(message, call_next)


def _dispatch(calls: Mapping[Any, Callable[[Any], Any]], message: Any) -> Any:
    return calls[message._consumer](message)


def _about_all(lines: list[Line]) -> dict[str, Any]:
    """The fields of log records about several consumers."""
    streams = dict.fromkeys(line.consumer.stream for line in lines)
    return {"stream": ", ".join(streams), "consumer": ", ".join(line.consumer.name for line in lines)}


def _up(link: AsyncConsumer | None) -> AsyncConsumer:
    if link is None:
        raise ConnectionFailed("the database is away")
    return link


# The client layer offers `consumer.worker()` and `hg.worker()` without knowing this module.
AsyncConsumer.worker_type = AsyncHeadgate.worker_type = AsyncWorker
Consumer.worker_type = Headgate.worker_type = Worker
