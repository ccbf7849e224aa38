"""Worker processes, and what they do between "go" and the end of a round.

They are started once and given tasks over pipes: each worker connects, warms up, says that it is ready, and begins
when all are. A worker that fails sends its traceback, one that dies closes its pipe, one that hangs runs into a time
limit; each of these ends the run with an error, and `close` ends every process.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Self

import headgate

from .contenders import Contender, Queue, messages, open_queue
from .plan import RATE

Action = Literal["publish", "consume", "send", "drain", "pace", "follow"]

_WARM_UPS = 8  # calls; psycopg and plpgsql have prepared and planned everything after that
_WARM_UP_SECONDS = 2.0  # enough for a contender whose calls take that long
_EMPTY = 5  # receives in a row that found nothing: the backlog is gone
_GRACE_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """One worker's part of a round."""

    queue: Queue
    action: Action
    batch: int
    seconds: float = 0
    count: int = 0
    lasts: bool = False  # consume: a receive may find nothing (others hold it) though the backlog is there


@dataclass
class Tally:
    """What one worker did."""

    count: int
    seconds: float
    dry: bool = False  # the backlog ran out before the time
    times: dict[int, float] = field(default_factory=dict)  # of each message, on the machine's monotonic clock
    calls: list[float] = field(default_factory=list)  # consume: how long each receive took that found something

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else 0.0


class Processes:
    """Worker processes. Started with the first task that needs them; a context manager.

    `work` is the life of one: what it is told comes through the pipe, and so goes what it answers.
    """

    def __init__(self, work: Callable[[Connection], None] | None = None) -> None:
        self._work = work or _work
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def run(self, tasks: Sequence[Any]) -> list[Any]:
        """Does the tasks at the same time, each in a process of its own."""
        self._start(len(tasks))
        workers = self._workers[: len(tasks)]
        for (_, pipe), task in zip(workers, tasks, strict=True):
            _send(pipe, task)
        self._answers(workers, _GRACE_SECONDS)
        for _, pipe in workers:
            _send(pipe, "go")
        return self._answers(workers, max(task.seconds for task in tasks) + _GRACE_SECONDS)

    def release(self) -> None:
        """Has the workers close their connections, so that queues can be dropped."""
        for _, pipe in self._workers:
            _send(pipe, "release")
        self._answers(self._workers, _GRACE_SECONDS)

    def close(self) -> None:
        """Ends all processes."""
        for _, pipe in self._workers:
            pipe.close()
        for process, _ in self._workers:
            process.join(2)
            if process.is_alive():
                process.terminate()
                process.join(2)
            if process.is_alive():
                process.kill()
                process.join(2)
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, n: int) -> None:
        while len(self._workers) < n:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=self._work, args=(theirs,), daemon=True, name="headgate-bench")
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._workers.append((process, ours))

    def _answers(self, workers: Sequence[tuple[BaseProcess, Connection]], seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        waiting = {pipe: i for i, (_, pipe) in enumerate(workers)}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise headgate.Error(
                    f"a worker process of the benchmark did not answer within {seconds:.0f} s",
                    hint="is the machine or the server overloaded? look at pg_stat_activity while it runs",
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                i = waiting.pop(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    process = workers[i][0]
                    process.join(2)
                    raise headgate.Error(f"a worker process died with exit code {process.exitcode}") from None
                if isinstance(answer, ProcessFailure):
                    raise headgate.Error(f"a worker process failed:\n{answer.trace}")
                answers[i] = answer
        return [answers[i] for i in range(len(workers))]


@dataclass
class ProcessFailure:
    """A worker's answer when something went wrong."""

    trace: str


def _send(pipe: Connection, what: object) -> None:
    try:
        pipe.send(what)
    except OSError:
        raise headgate.Error("a worker process of the benchmark died") from None


def _work(pipe: Connection) -> None:
    """The life of a worker process: it ends when the other end of its pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    contenders: dict[Queue, Contender] = {}
    warm: set[tuple[Queue, Action, int]] = set()
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            if not isinstance(task, Task):
                for contender in contenders.values():
                    contender.close()
                contenders.clear()
                warm.clear()
                pipe.send("released")
                continue
            answer: str | Tally | ProcessFailure = "ready"
            try:
                if task.queue not in contenders:
                    contenders[task.queue] = open_queue(task.queue)
                if (kind := (task.queue, task.action, task.batch)) not in warm:
                    _warm_up(contenders[task.queue], task)
                    warm.add(kind)
            except Exception:
                answer = ProcessFailure(traceback.format_exc())
            pipe.send(answer)
            if isinstance(answer, ProcessFailure):
                continue
            pipe.recv()
            try:
                answer = _ACTIONS[task.action](contenders[task.queue], task)
            except Exception:
                answer = ProcessFailure(traceback.format_exc())
            pipe.send(answer)


def _warm_up(contender: Contender, task: Task) -> None:
    start = time.monotonic()
    for _ in range(_WARM_UPS):
        if time.monotonic() > start + _WARM_UP_SECONDS:
            break
        if task.action in ("publish", "pace"):
            contender.publish(messages(task.batch))
        elif task.action in ("consume", "follow"):
            contender.receive(task.batch)
    contender.settle()


def _publish(contender: Contender, task: Task) -> Tally:
    """Publishes for some seconds."""
    batch = messages(task.batch)
    count, start = 0, time.monotonic()
    while (now := time.monotonic()) < start + task.seconds:
        contender.publish(batch)
        count += task.batch
    return Tally(count, now - start)


def _consume(contender: Contender, task: Task) -> Tally:
    """Consumes a backlog for some seconds, or as long as it lasts."""
    count, empty = 0, 0
    calls: list[float] = []
    start = last = now = time.monotonic()
    while now < start + task.seconds and (task.lasts or empty < _EMPTY):
        begun = time.monotonic()
        got = len(contender.receive(task.batch))
        now = time.monotonic()
        if got:
            count, empty, last = count + got, 0, now
            calls.append(now - begun)
        else:
            empty += 1
            time.sleep(0.001)
    contender.settle()
    dry = not task.lasts and empty >= _EMPTY
    return Tally(count, (last if dry else time.monotonic()) - start, dry, calls=calls)


def _send_count(contender: Contender, task: Task) -> Tally:
    """Publishes a number of messages."""
    start = time.monotonic()
    for sent in range(0, task.count, task.batch):
        contender.publish(messages(min(task.batch, task.count - sent)))
    return Tally(task.count, time.monotonic() - start)


def _drain(contender: Contender, task: Task) -> Tally:
    """Consumes a number of messages."""
    count, start = 0, time.monotonic()
    while count < task.count:
        got = len(contender.receive(task.batch, wait=1))
        count += got
        if not got and time.monotonic() > start + _GRACE_SECONDS / 2:
            raise headgate.Error(f"only {count} of {task.count} messages arrived")
    contender.settle()
    return Tally(count, time.monotonic() - start)


def _pace(contender: Contender, task: Task) -> Tally:
    """Publishes at a fixed rate and notes when each message's commit was confirmed. When late: a larger batch."""
    times: dict[int, float] = {}
    start, sent = time.monotonic(), 0
    while (now := time.monotonic()) < start + task.seconds:
        due = int((now - start) * RATE) - sent
        if due <= 0:
            time.sleep((sent + 1) / RATE - (now - start))
            continue
        ids = contender.publish(messages(due))
        committed = time.monotonic()
        times.update(dict.fromkeys(ids, committed))
        sent += due
    return Tally(sent, time.monotonic() - start, times=times)


def _follow(contender: Contender, task: Task) -> Tally:
    """Consumes what comes and notes when each message reached its worker; goes on until nothing comes any more."""
    times: dict[int, float] = {}
    start = time.monotonic()
    while True:
        ids = contender.receive(task.batch, wait=0.5)
        received = time.monotonic()
        times.update(dict.fromkeys(ids, received))
        if not ids and received > start + task.seconds:
            break
        if received > start + task.seconds + _GRACE_SECONDS / 2:
            raise headgate.Error("the consumer could not keep up with the publisher")
    contender.settle()
    return Tally(len(times), time.monotonic() - start, times=times)


_ACTIONS: dict[Action, Callable[[Contender, Task], Tally]] = {
    "publish": _publish,
    "consume": _consume,
    "send": _send_count,
    "drain": _drain,
    "pace": _pace,
    "follow": _follow,
}
