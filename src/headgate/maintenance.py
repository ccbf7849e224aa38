"""The maintenance service: it calls `maintain()` about once a second, for as long as it is left to run.

One loop for everybody: workers run `maintain_until` beside their other work, `headgate up` and the users' own
services run it through `Maintenance` and `AsyncMaintenance`. Any number of them may run at once, in any number of
processes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import psycopg

from .aio import AsyncHeadgate
from .errors import Conflict, ConnectionFailed, Error, InvalidArgument, NotAllowed, error_text
from .service import Pace, is_set_within, spread
from .sync import Headgate

log = logging.getLogger("headgate.maintenance")

INTERVAL = 1.0
MOST_STEPS = 20  # in a row, before others get the database to themselves for an interval
RETRY = Pace(0.2, 30.0)
LONGEST_WAIT = 5.0  # seconds for a connection: soon enough to say that there is none
LAST_STEP = 5.0  # seconds that a step under way has when the service is stopped

# Tasks that a step does as far as they can be done now. Of all others it does a bounded part, and there may be more.
COMPLETE = {"tick", "segments", "sweep", "rewrite"}
PARTS = {"forget message ids": 10_000, "thin ticks": 10_000}  # a smaller part than this was the last one

# What passes by itself: the database is away, restarting, full, or has changed places with its standby.
TRANSIENT_ERRORS = (ConnectionFailed, Conflict, psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)

Done = list[tuple[str, str, int]]


def may_continue(done: Done) -> bool:
    """Whether a step has left more of the same to do."""
    return any(task not in COMPLETE and count >= PARTS.get(task, 1) for task, _, count in done)


async def maintain_until(
    find: Callable[[], AsyncHeadgate | None], stop: asyncio.Event, *, interval: float = INTERVAL, **about: Any
) -> None:
    """Maintains the database that `find` gives (None: it is away) until `stop` is set. Raises NotAllowed."""
    pause, is_ailing = interval, False
    while not await is_set_within(stop, spread(pause)):
        if (hg := find()) is None:
            continue
        try:
            for _ in range(MOST_STEPS):
                done = await hg.maintain()
                for task, subject, count in done:
                    extra = {**about, "task": task, "subject": subject, "done": count}
                    log.debug("%s: %s (%s)", task, subject, count, extra=extra)
                if stop.is_set() or not may_continue(done):
                    break
        except NotAllowed:
            raise
        except Exception as error:
            # Others rely on this: only stop ends it. What is wrong is said once, until a step succeeds.
            pause = RETRY.after(pause)
            if not is_ailing:
                passing = isinstance(error, TRANSIENT_ERRORS)
                extra = {**about, "error": error_text(error)}
                log.warning("maintenance failed: %s", error_text(error), exc_info=not passing, extra=extra)
            is_ailing = not isinstance(error, Conflict)
        else:
            if is_ailing:
                log.info("maintenance works again", extra=about)
            pause, is_ailing = interval, False


class _Service:
    """What `Maintenance` and `AsyncMaintenance` have in common: everything but how it is started."""

    def __init__(self, hg: Any, interval: float = INTERVAL) -> None:
        if not 0 < interval <= 3600:
            raise InvalidArgument(f"an interval of {interval} s is not possible", hint="choose more than 0, up to 3600")
        self._hg = hg
        self._interval = interval
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._stop = asyncio.Event()
        self._stopping = False

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._loop is not None

    def _ask(self) -> None:
        """Ends `_serve`. From any thread."""
        self._stopping = True
        if (loop := self._loop) is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        if self._loop is not None:
            raise Error("this maintenance service is running already", hint="make another one: hg.maintenance()")
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stopping:
            self._stop.set()
        # A connection of its own: the service works while the application's pool is used up.
        wait = min(self._hg._timeout, LONGEST_WAIT)
        own = AsyncHeadgate(self._hg.url, max_connections=1, timeout=wait, pooler=self._hg._pooler)
        try:
            if not await self._open(own):
                return
            log.info("maintenance started")
            work = asyncio.create_task(maintain_until(lambda: own, self._stop, interval=self._interval))
            stopped = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({work}, timeout=LAST_STEP)
                if work.done():
                    work.result()
            finally:
                for task in (work, stopped):
                    task.cancel()
                await asyncio.wait({work, stopped}, timeout=1)
        finally:
            await own.close()
            self._loop, self._stopping = None, False
            log.info("maintenance stopped")

    async def _open(self, own: AsyncHeadgate) -> bool:
        """Connects, as soon as the database is there; False when the service was stopped before."""
        pause = min(self._interval, 1.0)
        while not self._stop.is_set():
            try:
                await own.open(migrate=False)
                return True
            except TRANSIENT_ERRORS as error:
                log.warning("maintenance failed: %s", error_text(error), extra={"error": error_text(error)})
            await is_set_within(self._stop, spread(pause))
            pause = RETRY.after(pause)
        return False


class Maintenance(_Service):
    """Maintains a database: `run()` until `stop()`, or in the background: `with hg.maintenance(): …`."""

    _thread: threading.Thread | None = None

    def run(self) -> None:
        """Maintains until `stop()` is called in another thread or by a signal's handler."""
        asyncio.run(self._serve())

    def start(self) -> Maintenance:
        """Maintains in a thread of its own until `stop()`."""
        if self._thread is not None:
            raise Error("this maintenance service is running already", hint="make another one: hg.maintenance()")
        self._thread = threading.Thread(target=self._background, name="headgate-maintenance", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends `run`, or what `start` began and waits for it; a step under way is finished."""
        self._ask()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join()
            self._thread, self._stopping = None, False

    def _background(self) -> None:
        try:
            self.run()
        except Exception as error:
            log.error("maintenance ended: %s", error_text(error), extra={"error": error_text(error)})

    def __enter__(self) -> Maintenance:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class AsyncMaintenance(_Service):
    """Maintains a database: `await run()` until `stop()`, or in the background: `async with hg.maintenance(): …`."""

    _task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Maintains until `stop()` is called."""
        await self._serve()

    async def start(self) -> AsyncMaintenance:
        """Maintains in a task of its own until `stop()`."""
        if self._task is not None:
            raise Error("this maintenance service is running already", hint="make another one: hg.maintenance()")
        self._task = asyncio.create_task(self._background(), name="headgate-maintenance")
        return self

    async def stop(self) -> None:
        """Ends `run`, or what `start` began and waits for it; a step under way is finished."""
        self._ask()
        if (task := self._task) is not None:
            await asyncio.wait({task})
            self._task, self._stopping = None, False

    async def _background(self) -> None:
        try:
            await self._serve()
        except Exception as error:
            log.error("maintenance ended: %s", error_text(error), extra={"error": error_text(error)})

    async def __aenter__(self) -> AsyncMaintenance:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


# The client layer offers `hg.maintenance()` without knowing this module.
AsyncHeadgate.maintenance_type = AsyncMaintenance
Headgate.maintenance_type = Maintenance
