"""What the tests of the SDK and of workers have in common."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import headgate
from support.calls import Db, facts


@contextmanager
def running(worker: headgate.Worker) -> Iterator[None]:
    """The worker, in a thread of its own; what it raises is raised here."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@asynccontextmanager
async def running_async(worker: headgate.AsyncWorker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, 60)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting after {seconds:g} seconds"
        await asyncio.sleep(0.01)


def is_done(db: Db, consumer: str = "c") -> bool:
    row = facts(db, "orders", consumer)
    return row["lag"] == 0


def take(consumer: headgate.Consumer, count: int) -> list[headgate.Message]:
    """Exactly `count` messages, in the order of the stream."""
    found: list[headgate.Message] = []
    while len(found) < count:
        more = consumer.receive(count - len(found), wait=5)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return sorted(found, key=lambda m: m.seq)


def is_empty(consumer: headgate.Consumer) -> bool:
    return not consumer.receive(100, wait=0.05)
