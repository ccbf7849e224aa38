"""Long polls: any number wait without a connection each, and wake when there may be something for them.

What is published through this server wakes them at once. For everything else one task looks at the sequences of the
streams that somebody waits for, all in one statement: every millisecond while they move, every few otherwise, and not
at all while nobody waits. A sequence moves before its message commits, so a stream that moved is looked at again a few
times. What becomes available without a publish (a delay or a deadline passes, a key is free again) is found by a scout:
now and then one waiter of each consumer has a look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from ...aio import AsyncHeadgate
from ...database import statements
from ...database.columns import Array
from ...service import Pace, TaskService
from ..siblings import Alone, Siblings

log = logging.getLogger("headgate.server")

LOOK = Pace(0.001, 0.005, growth=1.3)  # seconds between looks at the sequences, since one moved last
AGAIN = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064)  # seconds after a move: the message may not be committed yet
SCOUT_EVERY = 0.1  # seconds, of each consumer that is waited for
SCOUTS = 300  # a second, of all of them together
UNLIKELY_EVERY = 0.01  # seconds
MOST_REMEMBERED = 10_000  # streams, and keys
RETRY = 0.5  # seconds while the database is away

Key = tuple[str, str | None]  # consumer and, where lanes are leased, worker: those that wait for the same


@dataclass(slots=True)
class Queue:
    """The waiters for the same thing, each with how many messages it takes. The first one is woken first."""

    waiters: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)
    looked_at: float = 0.0  # when one was last woken

    def wake(self, count: int, now: float) -> None:
        """Wakes the first ones: as many as so many messages are for."""
        self.looked_at = now
        while count > 0 and self.waiters:
            waiter, wanted = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= wanted


@dataclass(slots=True)
class Watched:
    """A stream that somebody waits for."""

    queues: dict[Key, Queue] = field(default_factory=dict)
    seq: int | None = None  # None: not looked at yet
    again: list[float] = field(default_factory=list)  # when to look again


class Polling(TaskService):
    """Who waits for what, and the task that looks for them, as soon as somebody waits."""

    task_name = "headgate-polling"

    def __init__(
        self, hg: AsyncHeadgate, clock: Callable[[], float] = monotonic, siblings: Siblings | None = None
    ) -> None:
        super().__init__()
        self._hg = hg
        self._clock = clock
        self._siblings = siblings or Alone()
        self._count = 0  # who wait
        self._watched: dict[str, Watched] = {}
        self._left: dict[str, Watched] = {}  # nobody waits for these at the moment; who comes back need not look anew
        self._moves: dict[str, int] = {}  # of each stream, how often it was seen to move
        self._looks: dict[tuple[str, Key], int] = {}  # of each key, the mark of the last look
        self._somebody = asyncio.Event()
        self.polls = 0

    def drain(self) -> None:
        """Answers everybody who waits, now and from now on: the server stops."""
        super().drain()
        for watched in self._watched.values():
            for queue in watched.queues.values():
                queue.wake(sum(wanted for _, wanted in queue.waiters), self._clock())

    def mark(self, stream: str, key: Key, *, looks: bool = True) -> int:
        """To be taken before a look at the stream, and given to `wait` after it: what came in between is not missed."""
        mark = self._moves.get(stream, 0)
        if looks:
            if len(self._looks) > MOST_REMEMBERED:
                self._looks.clear()
            self._looks[stream, key] = mark
        return mark

    def is_waited_for(self, stream: str, key: Key) -> bool:
        """Whether somebody waits already, so that there is nothing to be had at this moment."""
        watched = self._watched.get(stream)
        queue = watched.queues.get(key) if watched else None
        return bool(queue and queue.waiters)

    async def wait(
        self, stream: str, key: Key, wanted: int, mark: int, seconds: float, gone: asyncio.Future[object]
    ) -> bool:
        """Waits for a sign that there may be something. False when the time is up or the caller has gone."""
        if self.is_draining:
            return False
        moves = self._moves.get(stream, 0)
        if moves != mark and self._looks.get((stream, key)) != moves:  # else another waiter looks at it already
            return not gone.done()
        watched = self._watched.get(stream)
        if watched is None:
            watched = self._watched[stream] = self._left.pop(stream) if stream in self._left else Watched()
        queue = watched.queues.setdefault(key, Queue(looked_at=self._clock()))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiters.append((waiter, wanted))
        self._somebody.set()
        self._count += 1
        self._siblings.waiting(self._count)
        try:
            await asyncio.wait((waiter, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiter.done() and not gone.done():
                return not self.is_draining
            return False
        finally:
            self._count -= 1
            self._siblings.waiting(self._count)
            if waiter.done():
                if gone.done():
                    queue.wake(1, self._clock())  # the sign is for the next one, then
            else:
                waiter.cancel()
                with suppress(ValueError):
                    queue.waiters.remove((waiter, wanted))
            self._clear(stream, key)

    def published(self, stream: str, seqs: Sequence[int]) -> None:
        """Messages were committed through this process."""
        if seqs:
            if not isinstance(self._siblings, Alone):
                self._siblings.published(stream, max(seqs), len(seqs))
            self.heard_of(stream, max(seqs), len(seqs))
        else:
            self._moved(stream, 0)

    def heard_of(self, stream: str, last: int, count: int) -> None:
        """Messages were committed through this server."""
        watched = self._watched.get(stream)
        if watched is not None:
            if watched.seq is not None:
                watched.seq = max(watched.seq, last)
            # a look at this very moment may go by a tick that another session began before the commit
            watched.again = [self._clock() + after for after in AGAIN]
        self._moved(stream, count)

    def may_have_work(self, stream: str, consumer: str, count: int = 1, *, likely: bool = True) -> None:
        """Something may have become available for a consumer. Where it is not likely, it is not looked at too often."""
        if likely:
            self._siblings.may_have_work(stream, consumer, count)
        self.wake(stream, consumer, count, likely=likely)

    def wake(self, stream: str, consumer: str, count: int, *, likely: bool = True) -> None:
        """The same, of those who wait here."""
        if (watched := self._watched.get(stream)) is not None:
            now = self._clock()
            for key, queue in list(watched.queues.items()):
                if key[0] == consumer and (likely or now - queue.looked_at >= UNLIKELY_EVERY):
                    queue.wake(count, now)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(q.waiters) for w in self._watched.values() for q in w.queues.values())

    def _moved(self, stream: str, count: int) -> None:
        if len(self._moves) > MOST_REMEMBERED and stream not in self._moves:
            self._moves.clear()  # marks taken before are then wrong, which means one look too many
        self._moves[stream] = self._moves.get(stream, 0) + 1
        if (watched := self._watched.get(stream)) is not None:
            now = self._clock()
            for queue in watched.queues.values():
                queue.wake(count, now)

    def _clear(self, stream: str, key: Key) -> None:
        """Forgets a queue that nobody stands in."""
        if (watched := self._watched.get(stream)) is not None:
            queue = watched.queues.get(key)
            if queue is not None and not queue.waiters:
                del watched.queues[key]
            if not watched.queues:
                if len(self._left) >= MOST_REMEMBERED:
                    self._left.clear()
                self._left[stream] = self._watched.pop(stream)

    async def _run(self) -> None:
        pause, scouted = 0.0, 0.0
        while True:
            if not self._watched:
                self._somebody.clear()
                await self._somebody.wait()
                pause = 0.0
            try:
                has_moved = await self._look_once()
            except Exception as error:  # others rely on this: only stop() ends it
                log.debug("cannot look at the streams: %s", error)
                await asyncio.sleep(RETRY)
                continue
            now = self._clock()
            if now - scouted >= SCOUT_EVERY / 4:
                scouted = now
                self._send_scouts(now)
            pause = LOOK.after(0.0 if has_moved else pause)
            await asyncio.sleep(pause)

    async def _look_once(self) -> bool:
        self.polls += 1
        rows = await self._hg.run(statements.LAST_SEQS, (Array(self._watched),))
        now = self._clock()
        has_moved = False
        for stream, seq in rows:
            watched = self._watched.get(stream)
            if watched is None:
                continue
            # (a lower one: another stream of that name, unless it was read just before something was published here)
            if watched.seq is None or seq > watched.seq or (seq < watched.seq and not watched.again):
                count = 1 if watched.seq is None else max(1, seq - watched.seq)
                watched.seq = seq
                watched.again = [now + after for after in AGAIN]
                has_moved = True
                self._moved(stream, count)
            elif watched.again:
                has_moved = True
                if now >= watched.again[0]:
                    watched.again.pop(0)
                    self._moved(stream, 1)
        return has_moved

    def _send_scouts(self, now: float) -> None:
        queues = [q for w in self._watched.values() for q in w.queues.values()]
        every = max(SCOUT_EVERY, len(queues) / SCOUTS)
        for queue in queues:
            if now - queue.looked_at >= every:
                queue.wake(1, now)
