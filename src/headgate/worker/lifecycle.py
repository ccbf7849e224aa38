"""Workers: a handler that is called for each message of a consumer, or of several, until it is told to stop.

One engine (`engine`) for both flavours. It runs on asyncio with connections of its own, so that what handlers do
with theirs never holds up an ack or an extension; a sync worker gives it an event loop in the calling thread, and its
handlers threads. Here is how it starts, and how it stops: in time, whatever the database does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Unpack

from ..aio import AsyncConsumer, AsyncHeadgate, AsyncMessage
from ..errors import Error, InvalidArgument
from ..sync import Consumer, Headgate, Message
from .connections import CLOSE_SECONDS
from .engine import WATCH_SECONDS, Engine
from .handlers import ThreadMessage, with_loop
from .inflight import FOREVER
from .options import WorkerOptions
from .signals import listen, unlisten

log = logging.getLogger("headgate.worker")

# Seconds that the last acks have, when the worker stops, to get to a database that is away or does not answer: these,
# once no handler runs any more, but not after the grace has ended; and in any case those, after which `run` gives up.
LAST_ACK_SECONDS, FINAL_ACK_SECONDS = 5.0, 0.7


class _Runnable(Engine):
    """What `Worker` and `AsyncWorker` have in common: everything but how it is started."""

    def stop(self, grace: float | None = None) -> None:
        """Ends `run`: running handlers may finish within the grace, the rest is handed back. From any thread."""
        self.is_stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._stop_now, grace)

    def _stop_now(self, grace: float | None) -> None:
        now = self._clock()
        self._stopped_at = min(self._stopped_at, now)
        self._grace_end = min(self._grace_end, now + (self.settings.grace if grace is None else grace))
        self._stop.set()
        self._wake.set()
        self._database.stop_waiting()

    async def _serve(self) -> None:
        if self._loop is not None:
            raise Error("this worker is running already", hint="make another one for the same consumer")
        self._loop = asyncio.get_running_loop()
        self._reconnects += self._database.reconnects
        self._begin(self._loop.time)
        is_listening = self.settings.signals and threading.current_thread() is threading.main_thread()
        tasks: list[asyncio.Task[None]] = []
        self._has_run = True
        try:
            if is_listening:
                listen(self)
            if self.is_stopping:
                self._stop_now(None)
            tasks = await self._start()
            if tasks:
                await self._watch(tasks)
        finally:
            if is_listening:
                unlisten(self)
            await self._end(tasks)
            self._loop, self.is_stopping = None, False

    async def _start(self) -> list[asyncio.Task[None]]:
        """Connects, and starts what a worker does, the receive loop first; nothing when it is to stop meanwhile."""
        opening = asyncio.create_task(self._database.open())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not opening.done():
                self._database.cut()
                opening.cancel()
                await asyncio.wait([opening], timeout=FINAL_ACK_SECONDS)
        if opening.cancelled() or not opening.done():
            return []
        opening.result()
        self._runners.start()
        s = self.settings
        kind = "tasks" if self.is_async else "threads"
        log.info("worker started: %s, %s %s, pid %s", self._name, s.concurrency, kind, os.getpid(), extra=self._extra)
        calls = [self._receive_loop(), self._extend_loop(), self._watch_loop(), self._maintain()]
        tasks = [asyncio.create_task(call) for call in calls] + self._runners.tasks
        if self._leases is not None:
            self._turning = asyncio.create_task(self._leases.turn())
            tasks += [asyncio.create_task(self._leases.beat(self._call_database)), self._turning]
        return tasks

    async def _watch(self, tasks: list[asyncio.Task[None]]) -> None:
        """Until the receive loop has ended, because the worker is to stop; or its time is up; or a task has failed."""
        receiving: asyncio.Task[Any] = tasks[0]
        pending: set[asyncio.Task[Any]] = set(tasks)
        stopped = asyncio.create_task(self._stop.wait())
        quiet_since = FOREVER
        try:
            while not receiving.done():
                now, timeout = self._clock(), None
                if self._stop.is_set():
                    is_quiet = not any(subscription.in_flight.count for subscription in self._subscriptions)
                    quiet_since = min(quiet_since, now) if is_quiet else FOREVER
                    has_news = any(subscription.in_flight.unsettled() for subscription in self._subscriptions)
                    end = min(self._grace_end, quiet_since + (LAST_ACK_SECONDS if has_news else 0))
                    if self._leases is not None and not self._database.is_silent():
                        end = self._grace_end  # on_lanes_lost may take its time
                    end += FINAL_ACK_SECONDS
                    if now >= end:
                        self._database.look(CLOSE_SECONDS / 2)
                        break
                    timeout = min(WATCH_SECONDS, end - now)
                waiting = pending if stopped.done() else {*pending, stopped}
                done, pending = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                pending -= {stopped}
                if any(task is not stopped and not task.cancelled() and task.exception() for task in done):
                    self._stop_now(0)
                    break
        except asyncio.CancelledError:
            self._stop_now(0)
            await asyncio.wait([receiving], timeout=FINAL_ACK_SECONDS)
            raise
        finally:
            stopped.cancel()
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
        if failed:
            # what is in flight is handed back all the same; by another one, if it was the receive loop
            last = asyncio.create_task(self._drain()) if receiving.done() else receiving
            await asyncio.wait([last], timeout=FINAL_ACK_SECONDS)
            last.cancel()
            if last.done() and not last.cancelled():
                last.exception()
            failed[0].result()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Ends all that still goes on. Takes no longer than a moment, whatever the database does."""
        left = self._runners.take_back() + self._runners.running()
        self._runners.close()
        if self._database.is_silent():
            self._database.cut()  # before tasks are cancelled: the driver would ask the database to cancel their calls
            await asyncio.sleep(CLOSE_SECONDS / 10)
        elif self._leases is not None:
            with suppress(Exception):  # then the others wait for the lease_time
                await asyncio.wait_for(self._leases.leave(self._link), FINAL_ACK_SECONDS / 2)
        for _ in range(2):  # the second time, what does not let itself be cancelled politely
            left_over = [task for task in tasks if not task.done()]
            for task in left_over:
                task.cancel()
            if left_over:
                await asyncio.wait(left_over, timeout=CLOSE_SECONDS)
        await self._database.close()
        for claimed in left:
            claimed.over = True
        unsettled = sum(subscription.end() for subscription in self._subscriptions)
        if unsettled:
            text = "%s messages could not be settled: they come again after their ack_wait"
            log.warning(text, unsettled, extra={**self._extra, "messages": unsettled})
        if tasks:
            stats = self.stats
            log.info(
                "worker stopped: %s, acked %s, failed %s", self._name, stats.acked, stats.nacked, extra=self._extra
            )


class AsyncWorker(_Runnable):
    """A handler and whose messages it gets: `await worker.run()`. Made by `consumer.worker()` or `hg.worker()`."""

    consumer_type = AsyncConsumer

    async def run(self) -> None:
        """Handles messages until `stop()`, SIGTERM or SIGINT; a second signal does not wait for running handlers."""
        await self._serve()

    def _for_thread(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return call if self.is_async or self._loop is None else functools.partial(with_loop, self._loop, call)

    def _bind(self, consumer: Any, message: AsyncMessage) -> Any:
        message._consumer = consumer
        if not self.is_async:
            message.__class__ = ThreadMessage
        return message


class Worker(_Runnable):
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
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise Error(
                "run() was called inside a running event loop, as in a notebook or in an async function",
                hint="run it in a thread: threading.Thread(target=worker.run).start(), then worker.stop(); or use "
                "headgate.connect_async() and await worker.run()",
            )
        asyncio.run(self._serve())

    def _bind(self, consumer: Any, m: AsyncMessage) -> Any:
        return Message(consumer, (m.ack_id, m.seq, m.key, m.text, m.headers, m.channel, m.attempt, m.created_at))


# The client layer offers `consumer.worker()` and `hg.worker()` without knowing this module.
AsyncConsumer.worker_type = AsyncHeadgate.worker_type = AsyncWorker
Consumer.worker_type = Headgate.worker_type = Worker
