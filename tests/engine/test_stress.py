"""Many writers and workers at once, who do all that they may do; afterwards a history of it is checked.

Times are the client's, taken around each call, so a finding is certain: what the database did lies between the two.
`make test ARGS="tests/engine/test_stress.py"` runs the short one, HEADGATE_STRESS_SECONDS=300 adds a long one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, count, groupby, pairwise

import psycopg
import pytest
from psycopg import AsyncConnection

WRITERS = 20
KEYS = [f"{family}.{number}" for family in "ab" for number in range(12)]
ACK_WAIT = 1.0
NEVER = float("inf")


@dataclass(frozen=True)
class Sent:
    seq: int
    key: str
    transaction: int
    started: float  # before the call that sent it
    committed: float  # after its commit


@dataclass
class Delivered:
    """One message of one delivery: certainly live between `since` and `until`."""

    seq: int
    key: str
    attempt: int
    ack_id: str
    called: float
    since: float
    until: float

    @property
    def delivery(self) -> str:
        return self.ack_id.rpartition(".")[0]


@dataclass
class Consumer:
    name: str
    ordered: bool
    filter: str | None
    max_deliver: int | None
    workers: int
    deliveries: list[Delivered] = field(default_factory=list)
    finished: dict[int, tuple[float, float]] = field(default_factory=dict)  # earliest and latest time of it
    maybe: set[int] = field(default_factory=set)  # perhaps acked too late

    def wants(self, key: str) -> bool:
        return self.filter is None or key.startswith("a.")


class Stress:
    def __init__(self, url: str, seconds: float, longest: float, seed: int, lane_by: str) -> None:
        self.lane_by = lane_by
        self.url = url
        self.seconds = seconds
        self.longest = longest
        self.random = random.Random(seed)
        self.sent: dict[int, Sent] = {}
        self.rolled_back: set[int] = set()
        self.transactions = count()
        self.writing = True
        self.consumers = [
            Consumer("plain", ordered=False, filter=None, max_deliver=4, workers=6),
            Consumer("ordered", ordered=True, filter=None, max_deliver=None, workers=4),
            Consumer("ordered-dead", ordered=True, filter=None, max_deliver=3, workers=3),
            Consumer("filtered", ordered=False, filter="a.*", max_deliver=None, workers=3),
        ]

    async def run(self) -> None:
        async with await AsyncConnection.connect(self.url, autocommit=True) as db:
            await db.execute("create table other_work (x int)")
            create = "select headgate.create_stream('s', lanes => 8, segment_rows => 3000, lane_by => %s)"
            await db.execute(create, [self.lane_by])
            for c in self.consumers:
                await db.execute(
                    "select headgate.create_consumer('s', %s, filter => %s, \"order\" => %s, "
                    "ack_wait => make_interval(secs => %s), max_deliver => %s)",
                    [c.name, [c.filter] if c.filter else None, "key" if c.ordered else "none", ACK_WAIT, c.max_deliver],
                )
        end = time.monotonic() + self.seconds
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(self.write(end)) for _ in range(WRITERS)]
            writers += [group.create_task(self.be_long(end)) for _ in range(3)]
            for consumer in self.consumers:
                for _ in range(consumer.workers):
                    group.create_task(self.work(consumer))
            group.create_task(self.maintain())
            await asyncio.wait(writers)
            self.writing = False

    async def be_long(self, end: float) -> None:
        """Transactions that have nothing to do with messages and stay open."""
        async with await AsyncConnection.connect(self.url) as db:
            while time.monotonic() < end:
                await db.execute("insert into other_work values (1)")
                await asyncio.sleep(self.random.uniform(0.5, 1) * self.longest)
                await (db.commit() if self.random.random() < 0.5 else db.rollback())

    async def maintain(self) -> None:
        async with await AsyncConnection.connect(self.url, autocommit=True) as db:
            while self.writing:
                await db.execute("select * from headgate.maintain()")
                await asyncio.sleep(0.3)

    async def write(self, end: float) -> None:
        async with await AsyncConnection.connect(self.url) as db:
            while time.monotonic() < end:
                number = next(self.transactions)
                mine: list[tuple[int, str, float]] = []
                if self.random.random() < 0.2:
                    await db.execute("insert into other_work values (1)")
                    await self.stay_open()
                await self.send(db, mine)
                if self.random.random() < 0.2:
                    await db.execute("savepoint a")
                    if self.random.random() < 0.5:
                        await self.send(db, mine)
                        await db.execute("release a")
                    else:
                        undone: list[tuple[int, str, float]] = []
                        await self.send(db, undone)
                        await self.stay_open()
                        await db.execute("rollback to a")
                        self.rolled_back.update(seq for seq, _, _ in undone)
                await self.stay_open()
                if self.random.random() < 0.3:
                    await self.send(db, mine)
                if self.random.random() < 0.1:
                    await db.rollback()
                    self.rolled_back.update(seq for seq, _, _ in mine)
                else:
                    await db.commit()
                    now = time.monotonic()
                    for seq, key, started in mine:
                        self.sent[seq] = Sent(seq, key, number, started, now)
                await asyncio.sleep(self.random.expovariate(20))

    async def stay_open(self) -> None:
        dice = self.random.random()
        if dice < 0.01:
            await asyncio.sleep(self.random.uniform(0, self.longest))
        elif dice < 0.3:
            await asyncio.sleep(self.random.uniform(0, 0.1))

    async def send(self, db: AsyncConnection, mine: list[tuple[int, str, float]]) -> None:
        keys = self.random.choices(KEYS, k=self.random.randint(1, 4))
        started = time.monotonic()
        cursor = await db.execute("select headgate.send_batch('s', %s, %s)", [keys, keys])
        ((seqs,),) = await cursor.fetchall()
        mine += [(seq, key, started) for seq, key in zip(seqs, keys, strict=True)]

    async def work(self, consumer: Consumer) -> None:
        """Receive until everything is finished: ack, nack, extend, forget, be late."""
        async with await AsyncConnection.connect(self.url, autocommit=True) as db:
            acking: list[Delivered] = []
            silent_since = time.monotonic()
            while self.writing or not self.is_finished(consumer):
                assert time.monotonic() - silent_since < 20, f"{consumer.name} gets nothing any more"
                batch = await self.receive(db, consumer, acking)
                acking = []
                if not batch:
                    await asyncio.sleep(0.01)
                    continue
                silent_since = time.monotonic()
                for _, group in groupby(batch, key=lambda m: m.delivery):
                    messages = list(group)
                    dice = self.random.random() if self.writing else 0  # to the end without further ado
                    if dice < 0.4:
                        acking += messages
                    elif dice < 0.8:
                        await self.ack(db, consumer, messages)
                    elif dice < 0.88:
                        await self.nack(db, consumer, messages)
                    elif dice < 0.93:  # acks a part, forgets the rest
                        await self.ack(db, consumer, messages[: len(messages) // 2])
                        self.forget(consumer, messages[len(messages) // 2 :])
                    elif dice < 0.96:
                        await self.extend(db, consumer, messages)
                    elif dice < 0.97:
                        await asyncio.sleep(ACK_WAIT * 1.1)
                        await self.ack(db, consumer, messages)
                    else:
                        self.forget(consumer, messages)
                if self.random.random() < 0.05:
                    await asyncio.sleep(self.random.uniform(0, 0.2))

    def is_finished(self, consumer: Consumer) -> bool:
        done = consumer.finished.keys() | consumer.maybe
        return all(seq in done for seq, m in self.sent.items() if consumer.wants(m.key))

    async def receive(self, db: AsyncConnection, consumer: Consumer, acking: list[Delivered]) -> list[Delivered]:
        called = time.monotonic()
        cursor = await db.execute(
            "select seq, key, attempt, ack_id from headgate.receive('s', %s, %s, acks => %s)",
            [consumer.name, self.random.choice([1, 5, 20]), [m.ack_id for m in acking]],
        )
        rows = await cursor.fetchall()
        now = time.monotonic()
        for m in acking:
            if now < m.called + ACK_WAIT:
                self.finish(consumer, m, called, now)
            else:
                consumer.maybe.add(m.seq)
            m.until = min(m.until, called)
        messages = [
            Delivered(seq, key, attempt, ack_id, called, now, called + ACK_WAIT) for seq, key, attempt, ack_id in rows
        ]
        consumer.deliveries += messages
        return messages

    def finish(self, consumer: Consumer, m: Delivered, earliest: float, latest: float) -> None:
        assert m.seq not in consumer.finished, f"{consumer.name}: {m} was finished already"
        consumer.finished[m.seq] = (earliest, latest)

    async def ack(self, db: AsyncConnection, consumer: Consumer, messages: list[Delivered]) -> None:
        if not messages:
            return
        called = time.monotonic()
        for m in messages:
            m.until = min(m.until, called)
        cursor = await db.execute(
            "select * from headgate.ack('s', %s, %s)", [consumer.name, [m.ack_id for m in messages]]
        )
        ((acked, stale),) = await cursor.fetchall()
        assert acked + stale == len(messages)
        assert not stale or time.monotonic() > messages[0].called + ACK_WAIT, "stale before its time"
        if acked and stale:  # late, and others have got some of them
            consumer.maybe.update(m.seq for m in messages)
        elif acked:
            for m in messages:
                self.finish(consumer, m, called, time.monotonic())
        else:
            self.forget(consumer, messages)

    async def nack(self, db: AsyncConnection, consumer: Consumer, messages: list[Delivered]) -> None:
        called = time.monotonic()
        for m in messages:
            m.until = min(m.until, called)
        cursor = await db.execute(
            "select * from headgate.nack('s', %s, %s, delay => make_interval(secs => %s))",
            [consumer.name, [m.ack_id for m in messages], self.random.choice([0, 0, 0.1, 0.5])],
        )
        ((nacked, _),) = await cursor.fetchall()
        if nacked:
            for m in messages:
                if consumer.max_deliver and m.attempt >= consumer.max_deliver:
                    self.finish(consumer, m, called, time.monotonic())
        else:
            self.forget(consumer, messages)

    async def extend(self, db: AsyncConnection, consumer: Consumer, messages: list[Delivered]) -> None:
        called = time.monotonic()
        cursor = await db.execute(
            "select * from headgate.extend('s', %s, %s, '2 seconds')", [consumer.name, [m.ack_id for m in messages]]
        )
        ((extended, _),) = await cursor.fetchall()
        if not extended:
            self.forget(consumer, messages)
            return
        for m in messages:
            m.until = called + 2
        await asyncio.sleep(ACK_WAIT * 1.2)
        called = time.monotonic()
        await self.ack(db, consumer, messages) if called < messages[0].until - 0.3 else self.forget(consumer, messages)

    def forget(self, consumer: Consumer, messages: list[Delivered]) -> None:
        """The delivery expires; a last attempt then ends in the dead letters, some time after its deadline."""
        for m in messages:
            if consumer.max_deliver and m.attempt >= consumer.max_deliver:
                self.finish(consumer, m, m.until, NEVER)


def check(stress: Stress, url: str) -> None:
    with psycopg.connect(url) as db:
        for consumer in stress.consumers:
            expected = {seq for seq, m in stress.sent.items() if consumer.wants(m.key)}
            seen = {m.seq for m in consumer.deliveries}
            assert seen - stress.sent.keys() == set(), "only what was committed is seen"
            assert seen == expected, "everything is seen"
            assert all(stress.sent[m.seq].key == m.key for m in consumer.deliveries)
            rows = db.execute(
                "select source_seq from headgate.dead_letters('s', %s, 1000000)", [consumer.name]
            ).fetchall()
            dead = {seq for (seq,) in rows}
            assert len(dead) == len(rows), "nothing dies twice"
            assert dead <= {m.seq for m in consumer.deliveries if m.attempt == consumer.max_deliver}
            check_one_at_a_time(consumer)
            if consumer.ordered:
                check_order(consumer, stress.sent)


def check_one_at_a_time(consumer: Consumer) -> None:
    """No two live deliveries of one message, none after it was finished, attempts are counted."""
    of_message: dict[int, list[Delivered]] = defaultdict(list)
    for m in sorted(consumer.deliveries, key=lambda m: m.since):
        of_message[m.seq].append(m)
    for seq, deliveries in of_message.items():
        assert sorted(m.attempt for m in deliveries) == list(range(1, len(deliveries) + 1)) or consumer.ordered
        for one, next_one in pairwise(deliveries):
            assert next_one.since >= one.until, f"{consumer.name}: {one} and {next_one} are live at once"
        _, latest = consumer.finished.get(seq, (NEVER, NEVER))
        assert deliveries[-1].called <= latest, f"{consumer.name}: {seq} comes again after it was finished"


def check_order(consumer: Consumer, sent: dict[int, Sent]) -> None:
    """No message of a key is handed out while an earlier one is unfinished, except together with it, in order."""
    of_key: dict[str, list[Sent]] = defaultdict(list)
    for message in sorted(sent.values(), key=lambda m: m.committed):
        of_key[message.key].append(message)
    finished = {seq: consumer.finished.get(seq, (-NEVER if seq in consumer.maybe else NEVER, 0))[0] for seq in sent}
    together = {(m.delivery, m.seq) for m in consumer.deliveries}
    committed = {key: [m.committed for m in messages] for key, messages in of_key.items()}
    latest = {key: list(accumulate((finished[m.seq] for m in ms), max)) for key, ms in of_key.items()}
    in_transaction: dict[tuple[int, str], list[Sent]] = defaultdict(list)
    for message in sent.values():
        in_transaction[message.transaction, message.key].append(message)
    for m in consumer.deliveries:
        message = sent[m.seq]
        before = bisect_left(committed[m.key], message.started)
        earlier = of_key[m.key][:before] if before and latest[m.key][before - 1] > m.since else []
        earlier += [e for e in in_transaction[message.transaction, m.key] if e.seq < m.seq]
        for e in earlier:
            assert finished[e.seq] <= m.since or ((m.delivery, e.seq) in together and e.seq < m.seq), (
                f"{consumer.name}: {m} was handed out before {e} was finished at {finished[e.seq]}"
            )


def stress_test(url: str, seconds: float, longest: float, lane_by: str) -> None:
    seed = int(os.environ.get("HEADGATE_STRESS_SEED", random.randrange(1_000_000)))
    print(f"HEADGATE_STRESS_SEED={seed}")
    stress = Stress(url, seconds, longest, seed, lane_by)
    asyncio.run(asyncio.wait_for(stress.run(), seconds * 3 + 60))
    print(f"{len(stress.sent)} sent, {[len(c.deliveries) for c in stress.consumers]} deliveries")
    assert stress.rolled_back
    check(stress, url)


@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
def test_for_some_seconds(database_url: str, lane_by: str) -> None:
    stress_test(database_url, seconds=8 if lane_by == "hash" else 6, longest=5, lane_by=lane_by)


@pytest.mark.slow
@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
def test_for_minutes(database_url: str, lane_by: str) -> None:
    seconds = float(os.environ.get("HEADGATE_STRESS_SECONDS", "60"))
    stress_test(database_url, seconds=seconds, longest=5, lane_by=lane_by)
