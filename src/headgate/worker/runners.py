"""What runs a worker's handlers: a fixed number of tasks (coroutine functions) or threads (plain functions).

Both take messages one at a time from what waits, so a slow handler holds up no message behind it, and nothing is made
per message. They report to `finished(claimed, error, seconds)` on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from .inflight import Claimed, NotStarted
from .options import Retry

log = logging.getLogger("headgate.worker")

# A handler that never waits for anything would keep the loop from everything else: this often that is let in.
YIELD_AFTER = 0.002

Finished = Callable[..., None]  # (claimed, error, seconds), and True for one whose time is up but that runs still
MayStart = Callable[[], bool]
REPEAT_SECONDS = 60.0  # seconds after which it is said again that every handler hangs


class WaitingQueue(Protocol):
    """What waits for a handler, in the order in which it gets one: a deque, or `Turns` of several consumers."""

    def __len__(self) -> int: ...
    def extend(self, claims: Iterable[Claimed], /) -> None: ...
    def popleft(self) -> Claimed:
        """The next one; IndexError when there is none. From any thread."""


class Runners(Protocol):
    """What the worker needs of them."""

    tasks: list[asyncio.Task[None]]  # these end only by a fault, or when they are cancelled
    may_start: MayStart | None  # asked before each handler is called
    hung: int  # handlers that have not ended although their messages were given up

    def start(self) -> None: ...
    def put(self, claims: Iterable[Claimed]) -> None: ...
    def take_back(self) -> list[Claimed]:
        """What waits and was not started; it waits no more."""

    def take_overdue(self, before: float) -> list[Claimed]:
        """The same, of what was claimed before that time."""

    def running(self) -> list[Claimed]: ...
    def abandon(self) -> None:
        """Ends what runs, as far as that is possible, and reports it as failed."""

    def drop(self) -> None:
        """The same, and goes on with what is put in later."""

    def close(self) -> None: ...


def _stopped() -> Retry:
    return Retry("the worker stopped before the handler had finished", delay=0)


def _late(seconds: float) -> TimeoutError:
    return TimeoutError(f"the handler took longer than {seconds:g} s")


class _Runners:
    """What both kinds have: what waits, and what runs in each of `count` slots."""

    def __init__(
        self, call: Callable[[Any], Any], count: int, timeout: float | None, finished: Finished,
        waiting: WaitingQueue | None = None,
    ) -> None:  # fmt: skip
        self._call = call
        self._timeout = timeout
        self._finished = finished
        self._waiting: WaitingQueue = deque() if waiting is None else waiting
        self._slots: list[Claimed | None] = [None] * count
        self.tasks: list[asyncio.Task[None]] = []
        self.may_start: MayStart | None = None
        self.hung = 0
        self._set_up()

    def _set_up(self) -> None:
        """What only this kind has."""

    def running(self) -> list[Claimed]:
        return [claimed for claimed in self._slots if claimed is not None]


class TaskRunners(_Runners):
    """Runs coroutine functions in `count` tasks of the worker's loop."""

    def _set_up(self) -> None:
        self._idle: deque[asyncio.Future[None]] = deque()
        self._dropped: set[int] = set()  # slots whose handler was cancelled, but not they themselves

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self._run(slot)) for slot in range(len(self._slots))]

    def put(self, claims: Iterable[Claimed]) -> None:
        self._waiting.extend(claims)
        for _ in range(min(len(self._waiting), len(self._idle))):
            if not (idle := self._idle.popleft()).done():
                idle.set_result(None)

    def take_back(self) -> list[Claimed]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def take_overdue(self, before: float) -> list[Claimed]:
        return _take_overdue(self._waiting, before)

    def abandon(self) -> None:
        for task in self.tasks:
            task.cancel()

    def drop(self) -> None:
        for slot, claimed in enumerate(self._slots):
            if claimed is not None and slot not in self._dropped:
                self._dropped.add(slot)
                self.tasks[slot].cancel()

    def close(self) -> None:
        self.abandon()

    async def _run(self, slot: int) -> None:
        loop, waiting, slots, call = asyncio.get_running_loop(), self._waiting, self._slots, self._call
        task = asyncio.current_task()
        assert task is not None
        let_in = monotonic()
        while True:
            if not waiting:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                let_in = monotonic()
                continue
            claimed = waiting.popleft()
            if claimed.delivery.lost:
                self._finished(claimed, None, 0)
                continue
            started = monotonic()
            if started >= claimed.delivery.start_by or (self.may_start is not None and not self.may_start()):
                self._finished(claimed, NotStarted(), 0)
                continue
            slots[slot] = claimed
            error: BaseException | None = None
            try:
                if self._timeout is None:
                    await call(claimed.message)
                else:
                    error = await self._call_in_time(claimed, self._timeout)
            except (Exception, SystemExit) as raised:  # that would end the loop, with all that others have in flight
                error = raised
            except asyncio.CancelledError as raised:
                if task.cancelling():
                    slots[slot] = None
                    self._finished(claimed, _stopped(), monotonic() - started)
                    if slot not in self._dropped or task.uncancel():
                        raise
                    self._dropped.discard(slot)
                    continue
                error = raised  # the handler's own: something it waited for was cancelled
            slots[slot] = None
            now = monotonic()
            self._finished(claimed, error, now - started)
            if slot in self._dropped:  # the handler finished all the same
                self._dropped.discard(slot)
                if task.uncancel():
                    raise asyncio.CancelledError
            if now - let_in > YIELD_AFTER:
                await asyncio.sleep(0)
                let_in = monotonic()

    async def _call_in_time(self, claimed: Claimed, seconds: float) -> BaseException | None:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                await self._call(claimed.message)
        except TimeoutError as raised:
            return _late(seconds) if limit.expired() else raised
        return None


class ThreadRunners(_Runners):
    """Runs plain functions in `count` threads. A thread cannot be ended: one that is late is only counted out.

    They are daemons, so that a handler that never returns does not keep a stopped process from ending.
    """

    def _set_up(self) -> None:
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()  # at least one for each that waits; False: the end
        self._results: deque[tuple[Claimed, BaseException | None, float]] = deque()
        self._reporting = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for slot in range(len(self._slots)):
            threading.Thread(target=self._run, args=(slot,), name=f"headgate-handler-{slot}", daemon=True).start()
        if self._timeout is not None:
            self.tasks = [asyncio.create_task(self._watch(self._timeout))]

    def put(self, claims: Iterable[Claimed]) -> None:
        claims = list(claims)
        self._waiting.extend(claims)
        for _ in claims:
            self._tokens.put(True)

    def take_back(self) -> list[Claimed]:
        claims = []
        with suppress(IndexError):
            while True:
                claims.append(self._waiting.popleft())
        return claims

    def take_overdue(self, before: float) -> list[Claimed]:
        return _take_overdue(self._waiting, before, lambda: self._tokens.put(True))

    def abandon(self) -> None:
        for claimed in self.running():
            self._finished(claimed, _stopped(), monotonic() - claimed.started)

    def drop(self) -> None:
        self.abandon()

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for _ in self._slots:
            self._tokens.put(False)

    def _run(self, slot: int) -> None:
        waiting, tokens, slots, call = self._waiting, self._tokens, self._slots, self._call
        claimed: Claimed | None
        while tokens.get():
            try:
                claimed = waiting.popleft()
            except IndexError:  # it was taken back
                continue
            error: BaseException | None = None
            claimed.started = monotonic()
            slots[slot] = claimed
            if claimed.started >= claimed.delivery.start_by or (self.may_start is not None and not self.may_start()):
                error = NotStarted()
            elif not claimed.delivery.lost:
                try:
                    call(claimed.message)
                except BaseException as raised:  # SystemExit too: it would end this thread and nothing else
                    error = raised
            slots[slot] = None
            self._results.append((claimed, error, monotonic() - claimed.started))
            # One wake-up of the loop for all that finishes before it gets there. The flag is cleared before the results
            # are read, so none is left behind.
            if not self._reporting:
                self._reporting = True
                assert self._loop is not None
                with suppress(RuntimeError):  # the worker has stopped and its loop is closed
                    self._loop.call_soon_threadsafe(self._report)
            claimed = None

    def _report(self) -> None:
        self._reporting = False
        results = self._results
        while results:
            self._finished(*results.popleft())

    async def _watch(self, seconds: float) -> None:
        said = -REPEAT_SECONDS
        while True:
            await asyncio.sleep(min(seconds / 10, 0.5))
            now = monotonic()
            running = self.running()
            for claimed in running:
                if now - claimed.started > seconds and not claimed.over and claimed.late is None:
                    self._finished(claimed, _late(seconds), now - claimed.started, True)
            self.hung = sum(claimed.over for claimed in running)
            if sum(claimed.over or claimed.late is not None for claimed in running) < len(self._slots):
                said = -REPEAT_SECONDS
            elif now - said >= REPEAT_SECONDS:
                said = now
                log.error(
                    "every handler hangs: nothing is handled until one of them ends; %s have taken longer than the "
                    "timeout of %g s, and a thread cannot be ended", len(self._slots), seconds,
                    extra={"handlers": len(self._slots)},
                )  # fmt: skip


def _take_overdue(waiting: Any, before: float, put_back: Callable[[], Any] = lambda: None) -> list[Claimed]:
    """Of a deque, from the front of which threads take meanwhile."""
    claims: list[Claimed] = []
    with suppress(IndexError):
        while waiting[0].claimed_at < before:
            claimed = waiting.popleft()
            if claimed.claimed_at >= before:  # a thread was faster, and this is another one
                waiting.appendleft(claimed)
                put_back()  # a thread may have found nothing meanwhile
                break
            claims.append(claimed)
    return claims


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """As asyncio.to_thread, in a thread that keeps nobody from ending who does not wait for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(value) if error is None else answer.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = call(*args)
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="headgate-callback", daemon=True).start()
    return await answer
