"""Push consumers: receive, post, and ack, nack or release, as any worker would.

Any number of servers push for the same consumer: receive gives each message to one of them, so none is sent twice while
its server lives. How many requests run at once is counted in each server; `max_ack_pending` holds over all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from ...aio import AsyncConsumer, AsyncMessage
from ...database import statements
from ...errors import Conflict, ConnectionFailed, ConsumerNotFound, Error, StreamNotFound
from ...service import Pace, TaskService, cancel_and_wait, is_set_within
from .addresses import Guard
from .posting import Answer, Poster, Target

if TYPE_CHECKING:
    from ..server import Server

log = logging.getLogger("headgate.server")

LOOK_EVERY = 1.0  # seconds between looks for changes that were made elsewhere
TIDY_EVERY = 10.0  # seconds
LINGER = 0.005  # seconds
IDLE = 30.0  # seconds of one wait for messages
RETRY = 0.5  # seconds while the database is away
GRACE = 30.0  # seconds that posts under way have when the server stops
TROUBLE = 5  # failures in a row after which an endpoint is spared, so that it does not use up every message's attempts
SPARE = Pace(0.5, 30.0)  # seconds that it is spared, longer with each failure
LONGEST_REST = 300.0  # seconds that an endpoint may ask for: it may be wrong, and nobody else can lift it
TELL_EVERY = 60.0  # seconds between lines of the log about what an endpoint refused
BACKOFF_MOST = 300.0  # seconds, where the consumer has no backoff of its own


class Pushing(TaskService):
    """Which consumers push, and their pushers."""

    task_name = "headgate-pushing"

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        settings = server.settings
        self.guard = Guard(private=settings.push_private, allowed=settings.push_allow)
        self._poster: Poster | None = None
        self._pushers: dict[tuple[str, str], Pusher] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()

    def start(self) -> None:
        """Begins to push."""
        self._poster = Poster(self.guard)
        super().start()

    def changed(self) -> None:
        """Something was changed through this process: look at once."""
        self._look.set()

    def drain(self) -> None:
        """Receives nothing more."""
        super().drain()
        for pusher in self._pushers.values():
            pusher.drain()

    async def stop(self) -> None:
        """Waits for what is under way, and ends."""
        await super().stop()
        await asyncio.gather(*(p.stop() for p in self._pushers.values()), *self._leaving)
        if self._poster is not None:
            await self._poster.close()

    async def _run(self) -> None:
        seen: str | None = None
        tidied = monotonic()
        while True:
            self._look.clear()
            try:
                if self._poster is not None and monotonic() - tidied > TIDY_EVERY:
                    tidied = monotonic()
                    await self._poster.tidy()
                [(version,)] = await self._server.hg.run(statements.PUSH_VERSION, ())
                if version != seen:
                    self._arrange(await self._server.hg.run(statements.PUSH_TARGETS, ()))
                    seen = version
            except Exception as error:  # only stop() ends it
                log.debug("cannot look for push consumers: %s", error)
            await is_set_within(self._look, LOOK_EVERY)

    def _arrange(self, rows: list[Any]) -> None:
        """Has a pusher for each consumer that pushes and is not paused. Others finish what they have begun."""
        targets = {
            (stream, consumer): Target(
                stream, consumer, version, url, tuple(secrets), concurrency, timeout.total_seconds(), headers
            )
            for stream, consumer, version, url, secrets, concurrency, timeout, headers in rows
        }
        for key, pusher in list(self._pushers.items()):
            if key not in targets or targets[key].version != pusher.target.version:
                del self._pushers[key]
                task = asyncio.create_task(pusher.stop())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        assert self._poster is not None
        for key, target in targets.items():
            if key not in self._pushers and not self.is_draining:
                self._pushers[key] = Pusher(self._server, self._poster, target)


class Pusher:
    """Pushes the messages of one consumer."""

    def __init__(self, server: Server, poster: Poster, target: Target) -> None:
        self.target = target
        self._server = server
        self._poster = poster
        self._held: dict[str, float] = {}  # by ack_id: until when the message is ours
        self._runs: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._stopped: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._failures = 0  # in a row
        self._spared = 0.0  # seconds, after the last one
        self._rest_until = 0.0
        self._told_until = 0.0  # that something failed
        self._ack_wait = 1.0  # seconds, of what was received last
        self._is_shorter = asyncio.Event()  # than it was
        name = f"headgate-push-{target.stream}-{target.consumer}"
        self._tasks = [asyncio.create_task(self._run(), name=name), asyncio.create_task(self._keep())]

    def drain(self) -> None:
        """Receives nothing more; messages that were not begun are handed back."""
        if not self._stopped.done():
            self._stopped.set_result(None)
        self._room.set()

    async def stop(self) -> None:
        """Waits for the posts under way, for a while. What is cut off then comes again at its deadline."""
        self.drain()
        await asyncio.wait([self._tasks[0]], timeout=GRACE)
        if self._runs:
            await asyncio.wait(self._runs, timeout=GRACE)
        await cancel_and_wait([*self._tasks, *self._runs])

    @property
    def _is_stopping(self) -> bool:
        return self._stopped.done()

    async def _run(self) -> None:
        t = self.target
        while not self._is_stopping:
            try:
                await self._round()
            except (StreamNotFound, ConsumerNotFound) as error:
                self._server.forget(error, t.stream, t.consumer)
                self._server.pushing.changed()
                await self._sleep(RETRY)
            except Exception as error:  # only stop() ends it
                log.warning("cannot receive to push %s of %s: %s", t.consumer, t.stream, error)
                await self._sleep(RETRY)

    async def _round(self) -> None:
        t, server = self.target, self._server
        if (rest := self._rest_until - monotonic()) > 0:
            await self._sleep(rest)
            return
        # of an endpoint that had trouble, one message finds out whether it still has
        most = 1 if self._failures >= TROUBLE else t.concurrency
        if most <= len(self._held):
            self._room.clear()
            await self._room.wait()
            return
        if most - len(self._held) < most // 2:  # others are about to be done: one receive for all of them
            await self._sleep(LINGER)
        room = most - len(self._held)
        consumer = await server.consumer(t.stream, t.consumer)
        key = (t.consumer, None)
        mark = server.polling.mark(t.stream, key)
        now = monotonic()
        # said in the call: the consumer's may be changed at any moment, and is not always known here yet
        ack_wait = consumer.ack_wait.total_seconds()
        if ack_wait < self._ack_wait:
            self._is_shorter.set()
        self._ack_wait = ack_wait
        messages = await consumer.receive(room, ack_wait=ack_wait)
        if not messages:
            if server.polling.is_draining:
                self.drain()
            else:
                await server.polling.wait(t.stream, key, room, mark, IDLE, self._stopped)
            return
        for m in messages:
            self._held[m.ack_id] = now + ack_wait
        for chain in chains(consumer, messages):
            run = asyncio.create_task(self._push(consumer, chain))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)

    async def _push(self, consumer: AsyncConsumer, chain: list[AsyncMessage]) -> None:
        """Posts messages one after the other. After one that failed, the others of its key wait for it."""
        try:
            while chain:
                if self._is_stopping or not self._is_ours(chain[0]):
                    break
                goes_on = await self._deliver(consumer, chain[0])
                if goes_on or chain[0].settled:
                    self._let_go(chain.pop(0))
                if not goes_on:
                    break
            if chain:  # what the engine has taken back already is stale to it
                await self._settle(chain[0], lambda: consumer.release(chain))
                self._server.polling.may_have_work(consumer.stream, consumer.name)
        except Exception:
            log.exception("pushing a message of %s to %s failed", consumer.stream, consumer.name)
        finally:
            for m in chain:
                self._let_go(m)

    async def _deliver(self, consumer: AsyncConsumer, m: AsyncMessage) -> bool:
        """Posts one message and settles it; whether the next one of its key may follow."""
        t, server = self.target, self._server
        began = perf_counter()
        answer = await self._poster.post(t, m)
        result = "done" if answer.is_done else "gone" if answer.is_gone else "failed"
        server.metrics.push(t.stream, t.consumer, result, perf_counter() - began)
        if answer.is_done:
            self._failures = 0
            await self._settle(m, lambda: server.batching.ack(t.stream, t.consumer, [m.ack_id]))
            server.polling.may_have_work(
                t.stream, t.consumer, likely=consumer.order == "key" or consumer.has_named_lanes
            )
            return True
        if answer.is_gone:
            params = (t.stream, t.consumer, t.version, "the endpoint answered 410, gone")
            await self._settle(m, lambda: server.hg.run(statements.PUSH_GONE, params))
            log.warning("the endpoint of %s of %s is gone: the consumer is paused", t.consumer, t.stream)
            return False  # and the message is released: nothing is wrong with it
        self._tell(m, answer)
        self._spare(answer)
        delay = answer.retry_after and min(answer.retry_after, LONGEST_REST)
        if delay is None and consumer.backoff is None:
            delay = min(2.0 ** min(m.attempt - 1, 20), BACKOFF_MOST)
        await self._settle(m, lambda: consumer.nack([m], delay=delay, error=answer.error))
        m.settled = "nacked"
        server.metrics.count("nacked", t.stream, t.consumer, 1)
        return False

    def _tell(self, m: AsyncMessage, answer: Answer) -> None:
        """Says in the log why a message was not taken: now and then, for it may be all of them."""
        if monotonic() >= self._told_until:
            t = self.target
            self._told_until = monotonic() + TELL_EVERY
            log.warning(
                "pushing message %s of %s for %s failed, attempt %s: %s", m.seq, t.stream, t.consumer, m.attempt,
                answer.error,
            )  # fmt: skip

    def _spare(self, answer: Answer) -> None:
        self._failures = self._failures + 1 if answer.is_trouble else 0
        self._spared = SPARE.after(self._spared) if self._failures >= TROUBLE else 0.0
        rest = min(answer.retry_after or 0.0, LONGEST_REST)
        if rest > SPARE.longest:
            t = self.target
            log.warning(
                "the endpoint of %s of %s asks for a pause: nothing is posted for %g s", t.consumer, t.stream, rest
            )
        self._rest_until = max(self._rest_until, monotonic() + max(rest, self._spared))

    async def _settle(self, m: AsyncMessage, settle: Callable[[], Awaitable[object]]) -> None:
        """Settles, again while the database is away and the message is ours. After that it comes again anyway."""
        while True:
            try:
                await settle()
                return
            except (StreamNotFound, ConsumerNotFound):
                return
            except (Conflict, ConnectionFailed, TimeoutError) as error:
                if not self._is_ours(m):
                    log.warning("a message of %s could not be settled: %s", self.target.stream, error)
                    return
            await asyncio.sleep(RETRY)

    async def _keep(self) -> None:
        """Keeps the messages in hand ours while they are posted or wait for one of their key."""
        t = self.target
        while True:
            self._is_shorter.clear()
            await is_set_within(self._is_shorter, max(min(self._ack_wait, 60.0), 0.1) / 3)
            try:
                if self._held:
                    await self._extend(await self._server.consumer(t.stream, t.consumer))
            except Error as error:
                log.debug("cannot extend what is pushed: %s", error)

    async def _extend(self, consumer: AsyncConsumer) -> None:
        """Moves deadlines. What others have by now is ours no more, and is not posted: this process may have stood."""
        held = list(self._held)
        now = monotonic()
        done = await consumer.extend(held, self._ack_wait)
        for id in held:
            if done.stale and (await consumer.extend([id], self._ack_wait)).stale:
                self._held.pop(id, None)
                self._room.set()
            elif id in self._held:
                self._held[id] = now + self._ack_wait

    def _is_ours(self, m: AsyncMessage) -> bool:
        return self._held.get(m.ack_id, 0.0) > monotonic()

    def _let_go(self, m: AsyncMessage) -> None:
        self._held.pop(m.ack_id, None)
        self._room.set()

    async def _sleep(self, seconds: float) -> None:
        """Waits, or until it is to stop."""
        await asyncio.wait([self._stopped], timeout=seconds)


def chains(consumer: AsyncConsumer, messages: list[AsyncMessage]) -> list[list[AsyncMessage]]:
    """What may be posted at once: every message, but those of one key in a row where keys are kept in order."""
    if consumer.order != "key":
        return [[m] for m in messages]
    found: dict[object, list[AsyncMessage]] = {}
    for m in sorted(messages, key=lambda m: m.seq):
        found.setdefault(m.seq if m.key is None else m.key, []).append(m)
    return list(found.values())
