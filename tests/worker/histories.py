"""Histories of workers beside trouble, drawn at random: what each run did, and what it must have done.

Two workers handle messages that take from a millisecond to seconds, while their database is killed, stopped or stands
still, the network stands still or is cut, settings are changed, and they are told to stop and begin anew. Three things
are looked at: how long an idle worker waits while the other holds what it has not begun; how long a stop takes; and
that everything received and handled is in the counts.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic

import psycopg

import headgate
from headgate.postgres.cluster import Cluster
from support.frozen import Network, frozen
from support.waiting import wait_until

SAMPLE = 0.02  # seconds between two looks
SLOW = 0.1  # seconds that nothing takes on a machine that is not too busy to judge a worker
FAULTS = ("freeze", "freeze network", "cut network", "cut backends", "kill", "restart")
CALM = ("send", "send", "ack_wait", "backoff", "stop", "rest", "rest")


@dataclass
class History:
    """What is drawn, and how long it may take."""

    seed: int
    order: headgate.Order = "none"
    over: str = "database"  # or "http": how the first worker gets there
    faults: bool = True
    steps: int = 12
    longest: float = 0.5  # seconds that a handler takes
    fault: float = 1.0  # seconds that a fault lasts, at the most
    pause: float = 0.3  # seconds between two steps, at the most


@dataclass
class Found:
    """What has been seen."""

    messages: int = 0
    idle: float = 0.0  # seconds that an idle worker has waited while the other held messages that it had not begun
    stop: float = 0.0  # seconds that a stop took beyond its grace
    done: list[str] = field(default_factory=list)
    began: Counter[int] = field(default_factory=Counter, repr=False)
    succeeded: Counter[int] = field(default_factory=Counter, repr=False)
    failed: Counter[int] = field(default_factory=Counter, repr=False)


class Lag:
    """How late this process's threads wake up: a busy machine is nobody's fault."""

    def __init__(self) -> None:
        self.total = 0.0

    def slept(self, planned: float, took: float) -> None:
        self.total += max(0.0, took - planned)


class Runner:
    """A worker of this process, that can be stopped and begin anew."""

    def __init__(self, worker: headgate.Worker, lag: Lag) -> None:
        self.worker = worker
        self._lag = lag
        self.failure: BaseException | None = None
        self.idle_since = self.linked_since = float("inf")

    def __repr__(self) -> str:
        w, subscription = self.worker, self.worker._subscriptions[0]
        deliveries = subscription.in_flight.deliveries
        return f"<{self.failure!r} {w._link} {w.stats} {deliveries} next {subscription.receive_at}>"

    def start(self) -> None:
        """Returns once it has its consumer: one that finds no database when it begins says so, and ends."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.worker._link is not None or self.failure is not None, 120)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.failure = error

    def stop(self, grace: float) -> float:
        """Returns the seconds that it took beyond the grace, apart from those for which the machine was busy."""
        before, began = self._lag.total, monotonic()
        self.worker.stop(grace)
        self._thread.join(120)
        took = monotonic() - began
        assert not self._thread.is_alive(), "a worker does not stop"
        if self.failure is not None:
            raise self.failure
        return took - (self._lag.total - before) - grace

    def look(self, now: float) -> None:
        """Since when it is idle, and since when it can say something to its database."""
        w, in_flight = self.worker, self.worker._subscriptions[0].in_flight
        is_linked = w._link is not None and not w.is_stopping and w._loop is not None
        self.linked_since = min(self.linked_since, now) if is_linked else float("inf")
        is_idle = is_linked and not in_flight.count and not w._runners.running()
        self.idle_since = min(self.idle_since, now) if is_idle else float("inf")

    def oldest(self) -> float:
        """Since when it has held the message that has waited longest for a handler of its."""
        try:
            return min((claimed.claimed_at for claimed in list(self.worker._runners._waiting)), default=float("inf"))  # type: ignore[attr-defined]
        except RuntimeError:  # it has changed meanwhile
            return float("inf")


class World:
    """The consumer, its workers, and what is done to them."""

    def __init__(self, history: History, cluster: Cluster, network: Network, server: Callable[[], tuple[str, str]]):
        self.history, self.cluster, self.network = history, cluster, network
        self.dice = random.Random(history.seed)
        self.found = Found()
        self._server = server
        self._is_over = threading.Event()  # handlers end at once
        self._healthy_since = self._steady_since = monotonic()
        self._lag = Lag()

    def play(self) -> Found:
        """The whole history, and the judgement of its counts."""
        h, found = self.history, self.found
        with headgate.connect(self.cluster.url()) as hg, self._clients() as clients, ExitStack() as later:
            stream = hg.stream("worked", create=True, lanes=4)
            later.callback(lambda: self._call(stream.drop))
            consumer = stream.consumer("c", create=True, order=h.order, backoff=0.05, ack_wait=30)
            make = lambda c: c.stream("worked").consumer("c").worker(self._handle, concurrency=3)  # noqa: E731
            self.runners = [Runner(make(client), self._lag) for client in clients]
            looking = threading.Thread(target=self._look, daemon=True)
            threading.Thread(target=self._probe, daemon=True).start()
            for runner in self.runners:
                runner.start()
            looking.start()
            try:
                self._send(stream)
                for _ in range(h.steps):
                    kind = self.dice.choice(FAULTS if h.faults and self.dice.random() < 0.4 else CALM)
                    found.done.append(kind)
                    self._do(kind, stream, consumer)
                    time.sleep(self.dice.uniform(0, h.pause))
                self._is_over.set()
                deadline = monotonic() + 120
                while not self._is_done(consumer):
                    assert monotonic() < deadline, f"not done: {consumer.info()} {self.runners} after {found.done}"
                    time.sleep(0.1)
            finally:
                self._is_over.set()
                found.stop = max(found.stop, *(runner.stop(30) for runner in self.runners))
                looking.join(60)
            self._judge(consumer)
        return found

    @contextmanager
    def _clients(self) -> Iterator[list[headgate.Headgate]]:
        slow = f"postgresql://postgres@127.0.0.1:{self.network.port}/postgres?sslmode=disable&gssencmode=disable"
        first: tuple[str, str | None] = self._server() if self.history.over == "http" else (self.cluster.url(), None)
        with headgate.connect(first[0], token=first[1]) as one, headgate.connect(slow) as two:
            yield [one, two]

    def _handle(self, m: headgate.Message) -> None:
        """Takes the time that the message says, and fails now and then."""
        self.found.began[m.data["n"]] += 1  # (under the lock of the interpreter: one at a time per message)
        self._is_over.wait(m.data["seconds"])
        if m.attempt <= m.data["fails"]:
            self.found.failed[m.data["n"]] += 1
            raise headgate.Retry(delay=0.01)
        self.found.succeeded[m.data["n"]] += 1

    def _send(self, stream: headgate.Stream) -> None:
        """A burst: fast ones, or slow ones, or of all kinds."""
        top, longest = self.dice.choice([0.002, 0.05, 1.0]), self.history.longest
        batch = []
        for _ in range(self.dice.choice([5, 40, 120])):
            seconds = longest * min(top, 10 ** self.dice.uniform(-4, 0))
            fails = self.dice.choices([0, 1, 2], [90, 8, 2])[0]
            data = {"n": self.found.messages, "seconds": max(0.001, seconds), "fails": fails}
            batch.append(headgate.Outgoing(data, key=f"k{self.dice.randrange(20)}", id=str(data["n"])))
            self.found.messages += 1
        self._call(lambda: stream.send_batch(batch))

    def _do(self, kind: str, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
        if kind == "send":
            self._send(stream)
        elif kind == "ack_wait":
            ack_wait = self.dice.choice([0.5, 1, 3, 30] if self.history.faults else [10, 20, 30])
            self._call(lambda: consumer.alter(ack_wait=ack_wait))
        elif kind == "backoff":
            backoff = self.dice.choice([0.01, 0.1, [0.01, 0.2]])
            self._call(lambda: consumer.alter(backoff=backoff))
        elif kind == "stop":
            self._stop_one().start()
        elif kind in FAULTS:
            stopped: Runner | None = None
            with self._trouble(kind):
                time.sleep(self.dice.uniform(0, self.history.fault))
                if self.dice.random() < 0.3:
                    self.found.done.append("stop meanwhile")
                    stopped = self._stop_one()
            if stopped is not None:
                stopped.start()

    def _call(self, call: Callable[[], object]) -> None:
        """As often as it takes: it does no harm, and the pool may have connections that were cut."""
        for _ in range(20):
            try:
                call()
            except headgate.errors.ConnectionFailed:
                continue
            return
        raise AssertionError("the database is there, and no call gets to it")

    def _stop_one(self) -> Runner:
        runner = self.dice.choice(self.runners)
        # Where nothing else happens what runs may finish, so that all that was handled is acked.
        grace = self.dice.uniform(0, 1) if self.history.faults else 30
        self.found.stop = max(self.found.stop, runner.stop(grace))
        return runner

    @contextmanager
    def _trouble(self, kind: str) -> Iterator[None]:
        self._healthy_since = float("inf")
        try:
            if kind == "freeze":
                with frozen(self.cluster):
                    yield
            elif kind == "freeze network":
                self.network.freeze()
                try:
                    yield
                finally:
                    self.network.thaw()
            elif kind == "cut network":
                self.network.cut()
                yield
            elif kind == "cut backends":
                with psycopg.connect(self.cluster.url(), autocommit=True) as db:
                    db.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where backend_type = 'client backend' and pid <> pg_backend_pid()"
                    )
                yield
            else:
                self.cluster.stop("immediate" if kind == "kill" else "fast")
                try:
                    yield
                finally:
                    self.cluster.start()
        finally:
            self._wait_for_database()
            self._healthy_since = monotonic()

    def _wait_for_database(self) -> None:
        def answers() -> bool:
            try:
                psycopg.connect(self.cluster.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(answers, 60)

    def _is_done(self, consumer: headgate.Consumer) -> bool:
        try:
            return consumer.info().lag == 0
        except headgate.errors.ConnectionFailed:  # the pool has a connection that was cut
            return False

    def _look(self) -> None:
        """Until all workers have ended."""
        one, two = self.runners
        while one._thread.is_alive() or two._thread.is_alive():
            began = monotonic()
            time.sleep(SAMPLE)
            now = monotonic()
            self._lag.slept(SAMPLE, now - began)
            if now - began > SLOW:  # nothing can be said of this time
                self._steady_since = now
            for runner in self.runners:
                runner.look(now)
            for idle, busy in ((one, two), (two, one)):
                since = max(idle.idle_since, busy.linked_since, busy.oldest(), self._healthy_since, self._steady_since)
                self.found.idle = max(self.found.idle, now - since)

    def _probe(self) -> None:
        """Whether the database answers as fast as on a machine that is not too busy, until the history is over."""
        while not self._is_over.wait(SAMPLE):
            with suppress(psycopg.Error), psycopg.connect(self.cluster.url(), autocommit=True) as db:
                while not self._is_over.wait(SAMPLE):
                    began = monotonic()
                    db.execute("select pg_current_xact_id()")
                    if monotonic() - began > SLOW:
                        self._steady_since = monotonic()

    def _judge(self, consumer: headgate.Consumer) -> None:
        """Handled is acked and failed, and what was lost is said to be."""
        found, stats = self.found, [runner.worker.stats for runner in self.runners]
        for s in stats:
            assert s.received == s.acked + s.nacked + s.released + s.lost + s.settled, s
            assert (s.running, s.waiting) == (0, 0), s
        acked, nacked, lost = (sum(getattr(s, name) for s in stats) for name in ("acked", "nacked", "lost"))
        began, succeeded, failed = (c.total() for c in (found.began, found.succeeded, found.failed))
        assert len(found.succeeded) == found.messages, "every message was handled"
        assert consumer.info().in_flight == 0
        if not self.history.faults:
            assert (acked, nacked, lost) == (found.messages, failed, 0)
            assert began == acked + nacked, "handled is acked and failed, exactly"
            assert set(found.succeeded.values()) == {1}
            return
        said = (found, *stats)
        assert acked + nacked <= began <= acked + nacked + lost, said
        # (a thread that a stop did not wait for counts as failed)
        assert acked <= succeeded <= acked + nacked + lost, said
        assert found.messages <= acked + lost, said
        if "kill" not in found.done:  # (a crash forgets the last acks, and their messages come again)
            assert acked <= found.messages, said
