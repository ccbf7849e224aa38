"""Durable batching: concurrent small calls become one commit, and nobody is answered before it.

While a commit is under way, what arrives gathers; it is the next group. So a lone call waits for nobody, and the more
calls there are, the larger the groups. When a group is refused, its members are tried alone: a bad one fails by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

import psycopg

from ...aio import AsyncConsumer, AsyncHeadgate, AsyncMessage
from ...database import statements
from ...database.columns import Array, Columns
from ...errors import ConnectionFailed, DatabaseUnavailable, Error
from ..operate.metrics import Metrics
from .polling import Polling

Item = TypeVar("Item")
Result = TypeVar("Result")

SEND_GROUP = 500  # messages
LARGE = 8192  # characters
ACK_GROUP = 1000  # ack_ids
RECEIVE_GROUP = 1000  # messages
LINGER = 0.002  # seconds
ALONE = 4  # members of a refused group that are tried at once


@dataclass(slots=True)
class _Group(Generic[Item, Result]):
    """What is under way for one key."""

    waiting: deque[tuple[Item, asyncio.Future[Result]]] = field(default_factory=deque)
    commits: int = 0
    committing: int = 0  # calls in these commits
    last_group_size: int = 1  # calls that were being committed when the last group went
    gathering: asyncio.Future[None] | None = None  # while the next group gathers: done when it is complete

    @property
    def is_gathering(self) -> bool:
        """Whether somebody gathers the next group."""
        return self.gathering is not None

    @property
    def is_complete(self) -> bool:
        """Whether the next group has as many calls as were there last time. They come again, and soon."""
        return len(self.waiting) >= self.last_group_size


class Grouper(Generic[Item, Result]):
    """Groups calls that belong to the same key. `commit` makes one commit of several and answers each."""

    def __init__(
        self,
        commit: Callable[[Any, list[Item]], Awaitable[Sequence[Result]]],
        weigh: Callable[[Item], int],
        *,
        most: int,
        parallel: int = 2,
        linger: float = LINGER,
        unclaimed: Callable[[Any, Result], None] = lambda key, result: None,
        timed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._commit = commit
        self._weigh = weigh
        self._most = most
        self._parallel = parallel
        self._linger = linger
        self._unclaimed = unclaimed  # told of what nobody waits for any more
        self._timed = timed  # told how long each commit took
        self._groups: dict[Hashable, _Group[Item, Result]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.groups = 0  # commits so far, and what they held
        self.calls = 0

    async def submit(self, key: Hashable, item: Item) -> Result:
        """Answers when the item is committed."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = self._loop.create_future()
        state = self._groups.get(key)
        if state is None:
            state = self._groups[key] = _Group()
        state.waiting.append((item, answer))
        if state.gathering is not None:
            if state.is_complete and not state.gathering.done():
                state.gathering.set_result(None)
        else:
            self._begin(key, state)
        return await answer

    def _begin(self, key: Hashable, state: _Group[Item, Result]) -> None:
        """Has the next group gathered, unless enough of them are being committed: then the first to end does it."""
        if state.commits < self._parallel:
            loop = asyncio.get_running_loop()
            state.gathering = loop.create_future()
            task = loop.create_task(self._work(key, state))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, key: Hashable, state: _Group[Item, Result]) -> None:
        """Gathers a group and commits it, and so on. While it commits, another one gathers."""
        while True:
            await self._gather(state)
            state.gathering = None
            if group := self._next_group(state):
                state.commits += 1
                state.committing += len(group)
                state.last_group_size = state.committing
                if state.waiting:
                    self._begin(key, state)
                try:
                    await self._run(key, group)
                finally:
                    state.commits -= 1
                    state.committing -= len(group)
            elif not state.commits:
                if self._groups.get(key) is state:
                    del self._groups[key]
                return
            if state.is_gathering or not group:
                return
            # Nobody may wait yet: those who have just been answered come again.
            state.gathering = asyncio.get_running_loop().create_future()

    async def _gather(self, state: _Group[Item, Result]) -> None:
        gathering = state.gathering
        assert gathering is not None
        await asyncio.sleep(0)  # what has arrived in the same turn of the loop goes along
        if not state.is_complete and not gathering.done():
            timer = asyncio.get_running_loop().call_later(self._linger, _complete, gathering)
            await gathering
            timer.cancel()

    def _next_group(self, state: _Group[Item, Result]) -> list[tuple[Item, asyncio.Future[Result]]]:
        waiting = state.waiting
        group: list[tuple[Item, asyncio.Future[Result]]] = []
        weight = 0
        while waiting:
            item, answer = waiting[0]
            if answer.done():  # its caller has gone
                waiting.popleft()
                continue
            weight += self._weigh(item)
            if group and weight > self._most:
                break
            group.append(waiting.popleft())
        return group

    async def _run(self, key: Hashable, group: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        self.groups += 1
        self.calls += len(group)
        try:
            began = perf_counter()
            results = await self._commit(key, [item for item, _ in group])
            self._timed(perf_counter() - began)
        except (Error, psycopg.Error) as error:
            # What the database refused was not done. A lost connection leaves open whether it was: trying again could
            # do it twice.
            if len(group) == 1 or not _is_refused(error):
                _fail(group, error)
            else:
                turns = asyncio.Semaphore(ALONE)
                await asyncio.gather(*(self._alone(key, member, turns) for member in group))
        except BaseException as error:
            _fail(group, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), result in zip(group, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
                else:
                    self._unclaimed(key, result)

    async def _alone(
        self, key: Hashable, member: tuple[Item, asyncio.Future[Result]], turns: asyncio.Semaphore
    ) -> None:
        async with turns:
            await self._run(key, [member])


def _is_refused(error: Error | psycopg.Error) -> bool:
    """Whether nothing was done, for sure."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate is not None
    return isinstance(error, DatabaseUnavailable) or not isinstance(error, ConnectionFailed)


def _complete(gathering: asyncio.Future[None]) -> None:
    if not gathering.done():
        gathering.set_result(None)


def _fail(group: Sequence[tuple[Any, asyncio.Future[Any]]], error: BaseException) -> None:
    for _, answer in group:
        if not answer.done():
            answer.set_exception(error)


@dataclass(slots=True)
class Receiving:
    """How many messages one request wants, and what it has finished."""

    wanted: int
    acks: list[str]


Received = tuple[list[AsyncMessage], int]  # messages, and how many of the acks were good


class Batching:
    """The groups of sends by stream, and of acks and receives by consumer."""

    def __init__(
        self,
        hg: AsyncHeadgate,
        *,
        on: bool,
        seconds: float,
        metrics: Metrics,
        polling: Polling,
    ) -> None:
        self._hg = hg
        self._on = on
        self._seconds = seconds
        self._metrics = metrics
        self._polling = polling
        self.sends: Grouper[Columns, list[int]] = Grouper(
            self._send, _weight, most=SEND_GROUP, timed=partial(metrics.commit, "send")
        )
        self.acks: Grouper[list[str], tuple[int, int]] = Grouper(
            self._ack, len, most=ACK_GROUP, parallel=1, timed=partial(metrics.commit, "ack")
        )
        self.receives: Grouper[Receiving, Received] = Grouper(
            self._receive,
            lambda r: r.wanted,
            most=RECEIVE_GROUP,
            unclaimed=lambda key, received: self._release(key[0], received[0]),
            timed=partial(metrics.commit, "receive"),
        )
        self._releases: set[asyncio.Task[None]] = set()

    async def send(self, stream: str, sending: Columns) -> list[int]:
        """The seqs of the messages, once they are committed."""
        # Messages with ids may wait for somebody's open transaction that has sent the same id: apart from the others.
        key = (stream, sending.ids is not None)
        return await self.sends.submit(key, sending) if self._on else (await self._send(key, [sending]))[0]

    async def ack(self, stream: str, consumer: str, ack_ids: list[str]) -> tuple[int, int]:
        """How many messages were acked, and how many ack_ids were stale."""
        key = (stream, consumer)
        return await self.acks.submit(key, ack_ids) if self._on else (await self._ack(key, [ack_ids]))[0]

    async def receive(
        self,
        consumer: AsyncConsumer,
        wanted: int,
        acks: list[str],
        worker: str | None,
        ack_wait: float | None = None,
    ) -> Received:
        """Messages for one request, and how many it has acked.

        Requests of the same moment share a claim, which costs little more than one's own.

        They then share deliveries, and so a deadline: those with another `ack_wait` have a claim of theirs. Where keys
        are kept in order nobody shares: their messages go to one worker.
        """
        if not self._on or worker is not None or consumer.order == "key" or consumer.leased:
            acked = await self._ack_first(consumer, [acks])
            async with asyncio.timeout(self._seconds):
                return await consumer.receive(wanted, worker=worker, ack_wait=ack_wait), acked[0]
        return await self.receives.submit((consumer, ack_wait), Receiving(wanted, acks))

    async def _receive(self, key: tuple[AsyncConsumer, float | None], group: list[Receiving]) -> list[Received]:
        consumer, ack_wait = key
        acked = await self._ack_first(consumer, [r.acks for r in group])
        async with asyncio.timeout(self._seconds):
            messages = await consumer.receive(sum(r.wanted for r in group), ack_wait=ack_wait)
        answers, start = [], 0
        for r, count in zip(group, acked, strict=True):  # full batches first: then a delivery has few owners
            answers.append((messages[start : start + r.wanted], count))
            start += r.wanted
        return answers

    async def _ack_first(self, consumer: AsyncConsumer, acks: list[list[str]]) -> list[int]:
        """How many of each caller's acks were good. A receive could settle them, but would not say that."""
        given = [ids for ids in acks if ids]
        if not given:
            return [0] * len(acks)
        counts = iter(await self._ack((consumer.stream, consumer.name), given))
        return [next(counts)[0] if ids else 0 for ids in acks]

    def _release(self, consumer: AsyncConsumer, messages: list[AsyncMessage]) -> None:
        """The caller has gone: others get them now, not at the deadline."""

        async def release() -> None:
            with suppress(Error):
                await consumer.release(messages)

        if messages:
            task = asyncio.create_task(release())
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _send(self, key: tuple[str, bool], group: list[Columns]) -> list[list[int]]:
        stream = key[0]
        columns = Columns.joined(group)
        query = statements.SEND_SOON_AT if columns.has_times else statements.SEND_SOON
        async with asyncio.timeout(self._seconds):
            rows = await self._hg.run(query, (stream, *columns.parameters))
        seqs = list(rows[0][0])
        self._metrics.count("published", stream, None, len(seqs))
        self._polling.published(stream, seqs)
        answers, start = [], 0
        for sending in group:
            answers.append(seqs[start : start + len(sending.datas)])
            start += len(sending.datas)
        return answers

    async def _ack(self, key: tuple[str, str], group: list[list[str]]) -> list[tuple[int, int]]:
        # In the order of lanes and deliveries, which every settling keeps: so two groups seldom wait for each other in
        # a circle. (When they do, PostgreSQL refuses one, and its members are tried alone.)
        order = sorted(range(len(group)), key=lambda i: [int(n) for n in group[i][0].split(".")])
        joined = Array(" ".join(group[i]) for i in order)
        async with asyncio.timeout(self._seconds):
            rows = await self._hg.run(statements.ACK_EACH, (joined, *key))
        answers = [(0, 0)] * len(group)
        for i, (_, acked, stale) in zip(order, rows, strict=True):
            answers[i] = (acked, stale)
        return answers


def _weight(sending: Columns) -> int:
    """Messages; a large one counts as several, lest a group keep the others waiting."""
    return max(len(sending.datas), sum(map(len, sending.datas)) // LARGE)
