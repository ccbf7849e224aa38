"""Workers: a handler that is called for each message of a consumer until it is told to stop.

One engine for both flavours. It runs on asyncio with connections of its own, so that what handlers do with theirs never
holds up an ack or an extension; a sync worker gives it an event loop in the calling thread, and its handlers threads.

Three things go on at once: the *pump* receives messages and settles finished ones, in the same call where it can; the
*keeper* extends unfinished deliveries, long before their deadline; the *runners* call the handler. Where lanes are
leased, `Leases` adds heartbeats and says which messages may be handled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Unpack

from . import statements, tracing
from .aio import AsyncConsumer, AsyncHeadgate, AsyncMessage, AsyncStream
from .errors import Conflict, ConnectionFailed, Error, InvalidArgument, NotAllowed, NotJoined
from .maintenance import PASSING, tend
from .sync import Consumer, Message
from .worker_hand import FLUSH_AFTER, FOREVER, Delivery, Hand, Work
from .worker_leases import Leases, is_leased
from .worker_options import Retry, WorkerOptions, WorkerSettings, WorkerStats, error_text, spread
from .worker_runners import Runners, TaskRunners, ThreadRunners
from .worker_signals import listen, unlisten
from .worker_timings import Timings

log = logging.getLogger("headgate.worker")

SHORTEST_POLL, LONGEST_POLL, POLL_GROWTH = 0.001, 0.1, 1.5
SHORTEST_RETRY, LONGEST_RETRY = 0.1, 5.0
LAST_WORDS = 5.0  # seconds to get the last acks to a database that is away when the worker stops


class _Engine:
    """What `Worker` and `AsyncWorker` have in common: everything but how it is started."""

    def __init__(self, consumer: Any, handler: Callable[[Any], Any], **options: Unpack[WorkerOptions]) -> None:
        self.consumer = consumer
        self.handler = handler
        self.settings = WorkerSettings(**options)
        self.is_async = _is_async(handler)
        functools.update_wrapper(self, handler, updated=())
        self._call = handler
        for layer in reversed(self.settings.middleware):
            if _is_async(layer) != self.is_async:
                raise InvalidArgument(
                    f"the middleware {layer!r} and the handler are not of one kind",
                    hint="make both coroutine functions, or both plain functions",
                )
            self._call = functools.partial(_through, layer, self._call)
        self._extra = {"stream": consumer.stream, "consumer": consumer.name}
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._link: AsyncConsumer | None = None  # on the engine's own connections; None while the database is away
        self.is_stopping = False
        self._received = self._acked = self._nacked = self._released = self._lost = self._reconnects = 0
        self._begin(lambda: 0.0)

    def _begin(self, clock: Callable[[], float]) -> None:
        """Empty-handed."""
        s = self.settings
        kind: type[TaskRunners] | type[ThreadRunners] = TaskRunners if self.is_async else ThreadRunners
        call = self._call
        if tracing.is_on():
            call = tracing.handled(call, self.consumer.stream, self.consumer.name, self.is_async, Retry)
        self._runners: Runners = kind(call, s.concurrency, s.timeout, self._finished)
        self._hand = Hand(s, clock, self._extra)
        self._clock = clock
        self._timings = Timings(s.timing)
        self._grace = s.grace
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._nap_until = -1.0  # when the pump wakes by itself; -1 while it is awake
        self._leases: Leases | None = None  # where lanes are leased
        self._hungry = False  # the last receive was full: there is more
        self._recovering = asyncio.Lock()
        self._retry_after = SHORTEST_RETRY
        self._away = False

    def __call__(self, message: Any) -> Any:
        """Calls the handler, without the worker around it."""
        return self.handler(message)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.consumer!r}, {getattr(self.handler, '__qualname__', self.handler)!r})"

    @property
    def stats(self) -> WorkerStats:
        """What this worker has done, and what it has in hand."""
        running = len(self._runners.running())
        return WorkerStats(
            received=self._received,
            acked=self._acked,
            nacked=self._nacked,
            released=self._released,
            lost=self._lost + self._hand.lost,
            reconnects=self._reconnects,
            running=running,
            waiting=max(0, self._hand.claimed - running),
        )

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
        self._lost += self._hand.lost
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
            if self._link is not None:
                if self._leases is not None:
                    with suppress(Exception):  # then the others wait for the lease_time
                        await self._leases.leave(self._link)
                await self._link.hg.close()
                self._link = None
            self._loop, self.is_stopping = None, False
            log.info("worker stopped", extra=self._extra)

    async def _open(self) -> None:
        """Connects, and reads the consumer's settings as they are now."""
        hg = self.consumer.hg
        connections = 3 if self.consumer.leased else 2  # a heartbeat must not wait for maintenance
        own = AsyncHeadgate(hg.url, max_connections=connections, timeout=hg._timeout, pooler=hg._pooler)
        await own.open(migrate=False)
        try:
            link = await AsyncStream(own, self.consumer.stream).consumer(self.consumer.name)
            link.worker_name = self.consumer.worker_name
            link.is_traced = False  # the handler's spans say it all
            if is_leased(link, self.settings):
                if self._leases is None:
                    self._leases = Leases(link, self.settings, self._hand, self._runners, self._wake.set, self._extra)
                link.worker_name = self._leases.name
        except BaseException:
            await own.close()
            raise
        self._link = link
        self._ack_wait = link.ack_wait.total_seconds()
        self._hand.ordered = link.order == "key"
        self._hand.has_backoff = link.backoff is not None

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
            if self._link is not broken:
                return  # the other task has been here
            if not self._away:
                self._away = True
                log.warning("the database is away", extra={**self._extra, "error": error_text(error)})
            if broken is not None:
                self._link = None
                with suppress(Exception):
                    await broken.hg.close()
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
        hand = self._hand
        pause, receive_at = SHORTEST_POLL, self._clock()
        while not self._stop.is_set():
            now, wanted, link = self._clock(), hand.room(), self._link
            if self._leases is not None and not self._leases.is_sure():
                wanted = 0
            is_due = hand.send_at <= now
            try:
                if wanted and (is_due or receive_at <= now):
                    got = await self._receive(_up(link), wanted)
                    pause = SHORTEST_POLL if got else min(pause * POLL_GROWTH, LONGEST_POLL)
                    self._hungry = got == wanted and not hand.ordered
                    # in order, more can be had once the acks of these go along
                    receive_at = self._clock() + (0 if self._hungry else FLUSH_AFTER if got and hand.ordered else pause)
                elif is_due:
                    await self._send(_up(link))
                else:
                    await self._nap(min(hand.send_at, receive_at if wanted else FOREVER))
            except PASSING as error:
                await self._recover(link, error)
            except NotJoined:
                assert self._leases is not None
                self._leases.give_up()
        await self._drain()
        await self._note_timings()
        if self._leases is not None:
            await self._leases.close(self._turning)

    async def _receive(self, link: AsyncConsumer, wanted: int) -> int:
        await self._send_unfinished(link)
        deadline = self._clock() + self._ack_wait  # of the database's clock it is a little later
        acks, messages = self._hand.collect()
        try:
            batch = await link.receive(wanted, acks=acks)
        except BaseException:
            self._hand.put_back(acks, messages)
            raise
        self._acked += messages
        self._received += len(batch)
        ready = self._hand.take(map(self._bind, batch), deadline)
        self._runners.put(ready if self._leases is None else self._leases.admit(ready))
        return len(batch)

    def _bind(self, message: AsyncMessage) -> Any:
        """The message as the handler gets it: on the connections of the handler's own consumer."""
        return message

    async def _send(self, link: AsyncConsumer, *, everything: bool = False) -> None:
        await self._send_unfinished(link)
        acks, messages = self._hand.collect(everything=everything)
        try:
            await link.ack(acks)
        except BaseException:
            self._hand.put_back(acks, messages)
            raise
        self._acked += messages

    async def _send_unfinished(self, link: AsyncConsumer) -> None:
        hand = self._hand
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
        hand = self._hand
        if error is None:
            self._timings.note(work.message, seconds)
        if (following := hand.finish(work, error, seconds)) is not None:
            self._runners.put([following])
        if self._leases is not None:
            self._leases.finished()
        if self._nap_until >= 0 and (hand.send_at < self._nap_until or (self._hungry and hand.room())):
            self._nap_until = -1.0
            self._wake.set()

    async def _drain(self) -> None:
        """Hands back what was not begun, waits for what runs, and sends the last acks."""
        hand, stopped = self._hand, self._clock()
        if self._leases is not None:
            with suppress(*PASSING, TimeoutError):  # if it cannot be said now, perhaps at the end
                await self._leases.leave(self._link)
        hand.give_back(self._runners.take_back())
        while hand.claimed or hand.send_at < FOREVER:
            now, end, link = self._clock(), stopped + self._grace, self._link
            if hand.claimed and end <= now:
                self._runners.abandon()
            try:
                if hand.send_at <= now or not hand.claimed:
                    await self._send(_up(link), everything=not hand.claimed)
                else:
                    await self._nap(min(hand.send_at, end if now < end else now + 0.05))
            except PASSING as error:
                if end + LAST_WORDS < now:
                    log.warning("the last acks could not be sent: their messages come again", extra=self._extra)
                    return
                await self._recover(link, error)

    async def _note_timings(self) -> None:
        if self._link is not None and (samples := self._timings.take()) is not None:
            with suppress(Error):  # it is a sample
                consumer = self._link
                await consumer.hg.run(statements.NOTE_TIMINGS, (consumer.stream, consumer.name, *samples))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(self._ack_wait / 6, 5))
            await self._note_timings()
            now, link = self._clock(), self._link
            due = [d for d in self._hand.deliveries.values() if d.deadline - self._ack_wait / 2 <= now and not d.lost]
            if due:
                try:
                    await self._extend(_up(link), due, now)
                except PASSING as error:
                    await self._recover(link, error)

    async def _tend(self) -> None:
        """Maintenance: somebody has to, and workers are there."""
        with suppress(NotAllowed):  # this role may not: the owner's `headgate up`, or another worker, does it
            await tend(lambda: self._link.hg if self._link else None, self._stop, **self._extra)

    async def _extend(self, link: AsyncConsumer, due: list[Delivery], now: float) -> None:
        if (await link.extend([d.id for d in due], self._ack_wait)).stale:
            for d in due:  # which ones? and is it gone, or has it been finished meanwhile?
                if d.left and (await link.extend([d.id], self._ack_wait)).stale and d.left:
                    self._hand.lose(d, self._runners.running())
        for d in due:
            d.deadline = now + self._ack_wait


class AsyncWorker(_Engine):
    """A handler and the consumer whose messages it gets: `await worker.run()`. Made by `consumer.worker()`."""

    async def run(self) -> None:
        """Handles messages until `stop()`, SIGTERM or SIGINT; a second signal does not wait for running handlers."""
        await self._serve()

    def _bind(self, message: AsyncMessage) -> Any:
        message._consumer = self.consumer
        return message


class Worker(_Engine):
    """A handler and the consumer whose messages it gets: `worker.run()`. Made by `consumer.worker()`."""

    def __init__(self, consumer: Consumer, handler: Callable[[Message], Any], **options: Unpack[WorkerOptions]) -> None:
        super().__init__(consumer, handler, **options)
        if self.is_async:
            raise InvalidArgument(
                "a coroutine function cannot be the handler of a sync worker",
                hint="use headgate.connect_async(), or a plain function",
            )

    def run(self) -> None:
        """Handles messages until `stop()`, SIGTERM or SIGINT; a second signal does not wait for running handlers."""
        asyncio.run(self._serve())

    def _bind(self, m: AsyncMessage) -> Any:
        return Message(self.consumer, (m.ack_id, m.seq, m.key, m.text, m.headers, m.channel, m.attempt, m.created_at))


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _through(layer: Callable[..., Any], call_next: Callable[[Any], Any], message: Any) -> Any:
    return layer(message, call_next)


def _up(link: AsyncConsumer | None) -> AsyncConsumer:
    if link is None:
        raise ConnectionFailed("the database is away")
    return link


# The client layer offers `consumer.worker()` without knowing this module.
AsyncConsumer.worker_type = AsyncWorker
Consumer.worker_type = Worker
