"""Workers of leased consumers: lanes that come and go, callbacks, leases that lapse, and processes that are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headgate
from headgate.worker.inflight import Claimed, ClaimedDelivery, NotStarted
from headgate.worker.runners import TaskRunners, ThreadRunners
from support.calls import Db, column, facts, value
from support.waiting import wait_until
from worker.test_worker import running, running_async, until

LANES = 8


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(database_url) as hg:
        yield hg


@pytest.fixture
def orders(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=LANES)


@pytest.fixture
async def ahg(database_url: str) -> AsyncIterator[headgate.AsyncHeadgate]:
    async with await headgate.connect_async(database_url) as hg:
        yield hg


@pytest.fixture
async def aorders(ahg: headgate.AsyncHeadgate) -> headgate.AsyncStream:
    return await ahg.stream("orders", create=True, lanes=LANES)


def send(stream: headgate.Stream, rounds: int = 1, keys: int = 100) -> int:
    for n in range(rounds):
        stream.send_batch([(f"k{i}", n) for i in range(keys)])
    return rounds * keys


def shares(db: Db) -> list[int]:
    return column(db, "select cardinality(lanes) from headgate.workers order by joined_at")


class TestOwnLoop:
    def test_join_heartbeat_leave(self, orders: headgate.Stream, hg: headgate.Headgate) -> None:
        consumer = orders.consumer("c", create=True, leased=True, lease_time=5)
        assert (consumer.leased, consumer.lease_time.total_seconds()) == (True, 5)
        send(orders)
        with pytest.raises(headgate.errors.NotJoined, match="join"):
            consumer.receive()
        assert consumer.join() == list(range(LANES))
        assert consumer.join(worker="other") == []
        assert consumer.heartbeat() == [0, 1, 2, 3]
        [mine, other] = hg.insights.workers("orders", "c")
        assert (mine.name, mine.lanes, other.name, other.lanes) == (consumer.worker_name, [0, 1, 2, 3], "other", [])
        got = consumer.receive(100, wait=5)
        assert {m.lane for m in got} == {0, 1, 2, 3}
        assert hg.insights.workers()[0].in_flight == len(got)
        assert consumer.leave() == 4
        assert consumer.heartbeat(worker="other") == list(range(LANES))
        assert hg.insights.workers("no") == []

    def test_not_leased(self, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True)
        assert not consumer.leased
        with pytest.raises(headgate.errors.InvalidArgument, match="not leased"):
            consumer.join()
        for options in ({"leased": True}, {"on_lanes_lost": print}):
            with pytest.raises(headgate.errors.InvalidArgument, match="not leased"):
                consumer.worker(lambda m: None, **options).run()  # type: ignore[call-overload]
        leased = orders.consumer("l", create=True, leased=True)
        with pytest.raises(headgate.errors.InvalidArgument, match="is leased"):
            leased.worker(lambda m: None, leased=False).run()
        with pytest.raises(headgate.errors.InvalidArgument):
            leased.worker(lambda m: None, leased=False, on_lanes_lost=print)


class TestLanes:
    def test_two_workers_share_and_one_hands_over(self, db: Db, orders: headgate.Stream) -> None:
        consumer = orders.consumer("c", create=True, leased=True, lease_time=0.6)
        seen: dict[str, list[int]] = {"a": [], "b": []}
        told: dict[str, list[tuple[str, frozenset[int]]]] = {"a": [], "b": []}
        lock = threading.Lock()

        def worker(name: str) -> headgate.Worker:
            held: set[int] = set()

            def gained(lanes: frozenset[int]) -> None:
                with lock:
                    told[name].append(("gained", lanes))
                    assert not held & lanes
                    held.update(lanes)

            def lost(lanes: frozenset[int]) -> None:
                with lock:
                    told[name].append(("lost", lanes))
                    assert held >= lanes
                    held.difference_update(lanes)

            def handle(m: headgate.Message) -> None:
                with lock:
                    assert m.lane in held
                    seen[name].append(m.lane)

            return consumer.worker(handle, leased=True, on_lanes_gained=gained, on_lanes_lost=lost)

        a, b = worker("a"), worker("b")
        total = send(orders)
        with running(a):
            wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
            assert told["a"][0] == ("gained", frozenset(range(LANES)))
            with running(b):
                wait_until(lambda: shares(db) == [4, 4])
                total += send(orders)
                wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
                assert told["a"][1] == ("lost", frozenset({4, 5, 6, 7}))
                assert set(seen["b"]) == {4, 5, 6, 7}
            assert shares(db) == [4], "it has left"
            assert set().union(*(lanes for what, lanes in told["b"] if what == "lost")) == {4, 5, 6, 7}
            wait_until(lambda: shares(db) == [LANES])
            total += send(orders)
            wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
        assert len(seen["a"]) + len(seen["b"]) == total
        assert [n for w in (a, b) for n in (w.stats.nacked, w.stats.lost)] == [0, 0, 0, 0], "every assertion held"
        assert column(db, "select name from headgate.workers") == []

    async def test_no_message_before_its_lane_is_open_and_none_after_it_is_closed(
        self, db: Db, aorders: headgate.AsyncStream
    ) -> None:
        consumer = await aorders.consumer("c", create=True, leased=True, lease_time=1, order="key")
        await aorders.send_batch([(f"k{i}", n) for n in range(3) for i in range(40)])
        opening, running_now, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        steps: list[Any] = []

        async def gained(lanes: frozenset[int]) -> None:
            await opening.wait()
            steps.append(("gained", lanes))

        async def lost(lanes: frozenset[int]) -> None:
            steps.append(("lost", lanes))

        @consumer.worker(on_lanes_gained=gained, on_lanes_lost=lost, concurrency=2, prefetch=120, grace=5)
        async def handle(m: headgate.AsyncMessage) -> None:
            steps.append(("begin", m.lane))
            running_now.set()
            await go.wait()
            steps.append(("end", m.lane))

        async with running_async(handle):
            await until(lambda: handle.stats.received)
            await asyncio.sleep(1.2)  # longer than the lease_time: a slow callback does not endanger it
            assert steps == []
            opening.set()
            await running_now.wait()
            busy = {lane for what, lane in steps if what == "begin"}
            # another worker takes all that can be had
            await consumer.join(worker="other")
            await until(lambda: shares(db) == [4, 0])
            theirs = set(await consumer.heartbeat(worker="other"))
            assert theirs == {4, 5, 6, 7}
            await until(lambda: any(what == "lost" for what, _ in steps))
            closed = set().union(*(lanes for what, lanes in steps if what == "lost"))
            assert closed == theirs - busy, "not where a handler still runs"
            go.set()
            await until(
                lambda: (
                    set().union(*(lanes for what, lanes in steps if what == "lost")) == theirs
                    and facts(db, "orders", "c")["in_flight"] == 0
                )
            )
            for at, (what, lanes) in enumerate(steps):
                if what == "lost":
                    assert not [step for step in steps[at:] if step[0] == "end" and step[1] in lanes]
            assert {m.lane for m in await consumer.receive(1000, worker="other")} == theirs
        assert handle.stats.released > 0

    def test_a_callback_that_fails_ends_the_worker(self, db: Db, orders: headgate.Stream) -> None:
        def gained(lanes: frozenset[int]) -> None:
            raise ValueError("no state")

        seen: list[int] = []
        worker = orders.consumer("c", create=True, leased=True).worker(
            lambda m: seen.append(m.seq), on_lanes_gained=gained
        )
        send(orders)
        with pytest.raises(ValueError, match="no state"):
            worker.run()
        assert seen == []
        assert column(db, "select name from headgate.workers") == [], "and it has left"

    @pytest.mark.parametrize("count", [1, 5])
    def test_workers_of_one_process_share_too(self, db: Db, orders: headgate.Stream, count: int) -> None:
        consumer = orders.consumer("c", create=True, leased=True, lease_time=0.6)
        seen: Counter[int] = Counter()
        workers = [consumer.worker(lambda m: seen.update([m.seq]), concurrency=1) for _ in range(count)]
        with ExitStack() as stack:
            for worker in workers:
                stack.enter_context(running(worker))
            wait_until(lambda: sorted(shares(db)) == sorted(LANES // count + (n < LANES % count) for n in range(count)))
            total = send(orders, 5)
            wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
        assert len(seen) == total
        assert set(seen.values()) == {1}


class TestLapses:
    async def test_a_worker_that_cannot_reach_the_database_gives_up_in_time(
        self, db: Db, database_url: str, aorders: headgate.AsyncStream
    ) -> None:
        consumer = await aorders.consumer("c", create=True, leased=True, lease_time=0.6, ack_wait=60)
        await aorders.send_batch([(f"k{i}", i) for i in range(20)])
        begun: list[int] = []
        cancelled: list[float] = []
        told: list[Any] = []
        stuck = True

        @consumer.worker(
            concurrency=2,
            prefetch=20,
            on_lanes_gained=lambda lanes: told.append(("gained", len(lanes))),
            on_lanes_lost=lambda lanes: told.append(("lost", len(lanes))),
        )
        async def handle(m: headgate.AsyncMessage) -> None:
            begun.append(m.seq)
            try:
                await asyncio.sleep(60 if stuck else 0)
            except asyncio.CancelledError:
                cancelled.append(time.monotonic())
                raise

        # everything that a heartbeat needs is locked away: the connection works, but answers nothing
        with psycopg.connect(database_url) as away:
            async with running_async(handle):
                await until(lambda: handle.stats.received == 20 and len(begun) == 2)
                away.execute("lock table headgate.worker in access exclusive mode")
                locked = time.monotonic()
                await until(lambda: len(cancelled) == 2)
                assert cancelled[0] - locked < 0.6
                await until(lambda: ("lost", LANES) in told)
                assert len(begun) == 2, "nothing more was begun"
                stuck = False
                away.rollback()
                await until(lambda: facts(db, "orders", "c")["lag"] == 0)
        assert told == [("gained", LANES), ("lost", LANES), ("gained", LANES), ("lost", LANES)]
        assert len(set(begun)) == 20

    def test_one_that_was_declared_dead_joins_again(self, db: Db, orders: headgate.Stream) -> None:
        seen: Counter[int] = Counter()
        worker = orders.consumer("c", create=True, leased=True, lease_time=2).worker(lambda m: seen.update([m.seq]))
        with running(worker):
            wait_until(lambda: shares(db) == [LANES])
            db.execute("delete from headgate.worker")
            total = send(orders)
            wait_until(lambda: len(seen) == total)

    @pytest.mark.parametrize("kind", [TaskRunners, ThreadRunners])
    async def test_no_handler_is_called_once_the_lease_is_not_sure(self, kind: Any) -> None:
        """Also when a process slept so long that the message is taken up before anybody looks at the time."""
        called: list[Any] = []
        finished: list[Any] = []

        async def task(message: Any) -> None:
            called.append(message)

        call = task if kind is TaskRunners else called.append
        runners = kind(call, 1, None, lambda claimed, error, seconds: finished.append(type(error)))
        runners.may_start = lambda: False
        runners.start()
        runners.put([Claimed("a", ClaimedDelivery("0.1", 0)), Claimed("b", ClaimedDelivery("0.2", 0))])
        await until(lambda: finished == [NotStarted, NotStarted])
        runners.may_start = lambda: True
        runners.put([Claimed("c", ClaimedDelivery("0.3", 0))])
        await until(lambda: finished == [NotStarted, NotStarted, type(None)])
        assert called == ["c"]
        runners.close()


PROGRAM = """
import sys, json, time, psycopg, headgate
url, name, out = sys.argv[1:]
hg = headgate.connect(url)
clock = psycopg.connect(url, autocommit=True)
log = open(out, "a", buffering=1)
def now():
    return clock.execute("select extract(epoch from clock_timestamp())::float8").fetchone()[0]
@hg.stream("orders").consumer("c").worker(concurrency=1, leased=True)
def handle(m):
    begin = now()
    print(json.dumps([m.lane, m.key, m.data, m.attempt, begin, None]), file=log)
    time.sleep(0.002)
    print(json.dumps([m.lane, m.key, m.data, m.attempt, begin, now()]), file=log)
handle.run()
"""


class TestProcesses:
    def test_one_of_four_is_killed_and_a_fifth_joins(
        self, db: Db, database_url: str, orders: headgate.Stream, tmp_path: Path
    ) -> None:
        """Its lanes move within the lease time, order holds, nothing is lost, no two handle one lane at a time."""
        lease_time = 2.0
        orders.consumer("c", create=True, leased=True, lease_time=lease_time, order="key", ack_wait=60)
        names = ["w0", "w1", "w2", "w3", "w4"]
        files = {name: tmp_path / name for name in names}
        processes: dict[str, subprocess.Popen[str]] = {}
        halt = threading.Event()
        sent = 0

        def publish() -> None:
            nonlocal sent
            while not halt.is_set():
                orders.send_batch([(f"k{i}", sent) for i in range(16)])
                sent += 1
                time.sleep(0.05)

        def start(name: str) -> None:
            processes[name] = subprocess.Popen([sys.executable, "-c", PROGRAM, database_url, name, str(files[name])])

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for name in names[:4]:
                start(name)
            wait_until(lambda: shares(db) == [2, 2, 2, 2])
            wait_until(lambda: all(f.exists() and f.stat().st_size for f in list(files.values())[:4]))
            processes["w1"].kill()
            killed = value(db, "select extract(epoch from clock_timestamp())::float8")
            wait_until(lambda: value(db, "select count(*) from headgate.workers where until > clock_timestamp()") == 3)
            wait_until(lambda: sorted(shares(db), reverse=True)[:3] == [3, 3, 2])
            moved = value(db, "select extract(epoch from clock_timestamp())::float8")
            start("w4")
            wait_until(lambda: sorted(shares(db), reverse=True)[:4] == [2, 2, 2, 2])
            wait_until(lambda: files["w4"].exists() and files["w4"].stat().st_size > 0)
            halt.set()
            publisher.join()
            wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
        finally:
            halt.set()
            publisher.join()
            for process in processes.values():
                process.terminate()
            for process in processes.values():
                process.wait(30)
        # a heartbeat renews the lease; the others notice at theirs, a third of the lease time later
        assert moved - killed < lease_time * 4 / 3 + 0.5
        check(files, killed, "w1", sent)

    def test_one_that_slept_begins_nothing_of_what_it_had(
        self, db: Db, database_url: str, orders: headgate.Stream, tmp_path: Path
    ) -> None:
        consumer = orders.consumer("c", create=True, leased=True, lease_time=0.6, ack_wait=60)
        send(orders)
        seen: list[int] = []
        program = PROGRAM.replace("time.sleep(0.002)", "time.sleep(0.3)").replace("concurrency=1", "prefetch=100")
        sleeper = subprocess.Popen([sys.executable, "-c", program, database_url, "w", str(tmp_path / "w")])
        try:
            wait_until(lambda: facts(db, "orders", "c")["in_flight"] == 100 and (tmp_path / "w").stat().st_size)
            sleeper.send_signal(signal.SIGSTOP)
            begun = begins(tmp_path / "w")
            with running(consumer.worker(lambda m: seen.append(m.seq))):
                wait_until(lambda: facts(db, "orders", "c")["lag"] == 0)
                sleeper.send_signal(signal.SIGCONT)
                wait_until(lambda: sorted(shares(db)) == [4, 4])
                # those eight that its threads were about to write down when it fell asleep
                assert begins(tmp_path / "w") <= begun + 8
        finally:
            sleeper.send_signal(signal.SIGCONT)
            sleeper.terminate()
            sleeper.wait(30)
        assert len(set(seen)) >= 100 - begun


def begins(file: Path) -> int:
    return sum(json.loads(line)[5] is None for line in file.read_text().splitlines())


def check(files: dict[str, Path], killed: float, dead: str, sent: int) -> None:
    handled = []
    for name, file in files.items():
        done: dict[tuple[str, int, int], tuple[Any, ...]] = {}
        for line in file.read_text().splitlines():
            lane, key, n, attempt, begin, end = json.loads(line)
            done[key, n, attempt] = (begin, end if end is not None else killed, lane, key, n, name, end is not None)
        handled += list(done.values())
        assert name == dead or all(finished for *_, finished in done.values())
    handled.sort()
    # of each lane, one handling after the other
    last: dict[int, tuple[Any, ...]] = {}
    for item in handled:
        begin, end, lane, *_ = item
        if lane in last:
            assert last[lane][1] <= begin, (last[lane], item)
        last[lane] = item
    # of each key every message, in order; what the dead one had in hand may come twice
    by_key: dict[str, list[int]] = defaultdict(list)
    for _, _, _, key, n, _, _ in handled:
        if not by_key[key] or by_key[key][-1] != n:
            by_key[key].append(n)
    assert len(by_key) == 16
    for numbers in by_key.values():
        repeats = [n for n, following in itertools.pairwise(numbers) if following <= n]
        assert len(repeats) <= 1, "only the dead one's batch comes again"
        assert sorted(set(numbers)) == list(range(sent))
    assert len({name for *_, name, _ in handled}) == 5
