"""What the clients of a round do, in a process of their own."""

from __future__ import annotations

import asyncio
import re
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

import psutil
import psycopg

from headgate.database.encoding import dump_json
from headgate.errors import Error

from ..contenders import messages
from ..processes import ProcessFailure
from .wire import LATER, WireConnection, call, open_lines, request

T = TypeVar("T")
Action = Literal["single", "traffic", "wake", "hold"]

LEAD = 2_000  # messages that publishers may be ahead of the slowest consumer: what counts is what comes through
WARM_UP = 0.5  # seconds of traffic that are not counted
WAIT_MS = 1000
_ACK_IDS = re.compile(rb'"ack_id":("[^"]+")')
_LATEST = 60.0  # seconds until something that was waited for must have happened


@dataclass(frozen=True)
class Load:
    """One process's part of a round."""

    action: Action
    url: str  # of a replica
    token: str
    stream: str
    seconds: float = 0
    batch: int = 1
    publishers: int = 0
    receivers: int = 0  # of each consumer
    consumers: tuple[str, ...] = ()
    count: int = 0  # wake: publishes; hold: polls
    other: str = ""  # wake: the replica that is published through
    database: str = ""  # hold: where connections are counted
    pid: int = 0  # hold: whose memory is looked at


@dataclass(frozen=True)
class Found:
    """What came of it: rates in messages a second, times in seconds."""

    published: float = 0
    delivered: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    memory: int = 0
    connections: int = 0


def perform(load: Load) -> Found:
    """Does it."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_ACTIONS[load.action](load))


def work(pipe: Connection) -> None:
    """The life of a process of clients: it ends when the other end of its pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    with suppress(EOFError, OSError):
        while True:
            load = pipe.recv()
            pipe.send("ready")
            if not isinstance(load, Load):
                continue
            pipe.recv()
            try:
                pipe.send(perform(load))
            except Exception:
                pipe.send(ProcessFailure(traceback.format_exc()))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _single(load: Load) -> Found:
    """Sends of `batch` messages, each connection one after the other."""
    count = 0
    wanted = _sending(load)
    begin = time.monotonic() + min(WARM_UP, load.seconds / 2)
    end = begin + load.seconds

    def answered(body: bytes) -> bytes | None:
        nonlocal count
        now = time.monotonic()
        count += begin <= now < end
        return wanted if now < end else None

    lines = [WireConnection(wanted, answered) for _ in range(load.publishers)]
    await open_lines(load.url, lines)
    await asyncio.gather(*(line.done for line in lines))
    return Found(published=count * load.batch / load.seconds)


class _Traffic:
    """Publishers and consumers at the same time. Whoever receives acks with the next receive."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent = 0
        self.received = dict.fromkeys(load.consumers, 0)
        self.published, self.delivered = 0, dict.fromkeys(load.consumers, 0)  # in the time that counts
        self.idle: deque[WireConnection] = deque()  # publishers that are too far ahead
        self.begin = time.monotonic() + min(WARM_UP, load.seconds / 2)
        self.end = self.begin + load.seconds
        self.wanted = _sending(load)

    def publisher(self) -> WireConnection:
        def answered(body: bytes) -> bytes | None:
            now = time.monotonic()
            self.sent += self.load.batch
            if self.begin <= now < self.end:
                self.published += self.load.batch
            if now >= self.end:
                return None
            if self.sent - min(self.received.values()) > LEAD:
                self.idle.append(line)
                return LATER
            return self.wanted

        line = WireConnection(self.wanted, answered)
        return line

    def receiver(self, consumer: str) -> WireConnection:
        path = f"/api/streams/{self.load.stream}/consumers/{consumer}/receive?batch_size={self.load.batch}"
        path += f"&wait_ms={WAIT_MS}"

        def answered(body: bytes) -> bytes | None:
            now = time.monotonic()
            ids = _ACK_IDS.findall(body)
            self.received[consumer] += len(ids)
            if self.begin <= now < self.end:
                self.delivered[consumer] += len(ids)
            while self.idle and (now >= self.end or self.sent - min(self.received.values()) <= LEAD):
                self.idle.popleft().send(self.wanted)
            if now >= self.end:
                return None
            return request(self.load.token, "POST", path, b'{"ack_ids":[' + b",".join(ids) + b"]}")

        return WireConnection(request(self.load.token, "POST", path), answered)


async def _traffic(load: Load) -> Found:
    traffic = _Traffic(load)
    lines = [traffic.publisher() for _ in range(load.publishers)]
    lines += [traffic.receiver(name) for name in load.consumers for _ in range(load.receivers)]
    await open_lines(load.url, lines)
    await asyncio.gather(*(line.done for line in lines))
    seconds = load.seconds
    return Found(
        published=traffic.published / seconds, delivered=tuple(n / seconds for n in traffic.delivered.values())
    )


async def _wake(load: Load) -> Found:
    """How long after the answer to a publish a poll is answered that waited for it."""
    (consumer,) = load.consumers
    path = f"/api/streams/{load.stream}/consumers/{consumer}/receive"
    arrivals: asyncio.Queue[tuple[float, list[bytes]]] = asyncio.Queue()
    commits: asyncio.Queue[float] = asyncio.Queue()

    def polled(body: bytes) -> bytes | None:
        arrivals.put_nowait((time.monotonic(), _ACK_IDS.findall(body)))
        return LATER

    def committed(body: bytes) -> bytes | None:
        commits.put_nowait(time.monotonic())
        return LATER

    poll = WireConnection(request(load.token, "POST", f"{path}?wait_ms=0"), polled)
    await open_lines(load.url, [poll])
    _, ids = await _next(arrivals, poll)
    sender = WireConnection(_sending(load), committed)
    await open_lines(load.other or load.url, [sender])
    await _next(commits, sender)
    times = []
    for number in range(load.count + 1):
        while True:
            poll.send(request(load.token, "POST", f"{path}?wait_ms=20000", b'{"ack_ids":[' + b",".join(ids) + b"]}"))
            if number == 0:  # what was sent to connect
                _, ids = await _next(arrivals, poll)
                break
            # The poll is to wait when the message comes: for how long is no matter, so it is not always the same.
            await asyncio.sleep(0.01 + number % 17 / 1000)
            if arrivals.empty():
                sender.send(_sending(load))
                at = await _next(commits, sender)
                arrived, ids = await _next(arrivals, poll)
                times.append(max(0.0, arrived - at))
                break
            _, ids = arrivals.get_nowait()
    return Found(times=tuple(times))


async def _next(queue: asyncio.Queue[T], line: WireConnection) -> T:
    """What comes next, unless the connection fails."""
    getting: asyncio.Future[Any] = asyncio.ensure_future(queue.get())
    await asyncio.wait({getting, line.done}, timeout=_LATEST, return_when=asyncio.FIRST_COMPLETED)
    if getting.done():
        found: T = getting.result()
        return found
    getting.cancel()
    if line.done.done():
        line.done.result()
    raise Error("an answer did not come", hint="is the machine overloaded?")


async def _hold(load: Load) -> Found:
    """Polls that wait, all at once: what they cost the server."""

    def answered(body: bytes) -> bytes | None:
        return None

    polls = []
    for number in range(load.count):
        consumer = load.consumers[number % len(load.consumers)]
        path = f"/api/streams/{load.stream}/consumers/{consumer}/receive?wait_ms=60000"
        polls.append(WireConnection(request(load.token, "GET", path), answered))
    await open_lines(load.url, polls)
    try:
        await _until_waiting(load)
        await asyncio.sleep(load.seconds)
        memory = psutil.Process(load.pid).memory_info().rss
        with psycopg.connect(load.database, autocommit=True) as connection:
            counted = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
        if any(poll.done.done() for poll in polls):
            raise Error("a poll was answered that should have waited")
        return Found(memory=memory, connections=counted[0] if counted else 0)
    finally:
        for poll in polls:
            poll.close()


async def _until_waiting(load: Load) -> None:
    deadline = time.monotonic() + _LATEST
    while time.monotonic() < deadline:
        text = await call(load.url, request(load.token, "GET", "/metrics"))
        found = re.search(rb"^headgate_http_polls_waiting (\S+)", text, re.MULTILINE)
        if found and float(found[1]) >= load.count:
            return
        await asyncio.sleep(0.2)
    raise Error(f"{load.count} polls did not come to wait")


def _sending(load: Load) -> bytes:
    bodies = ",".join('{"data":' + dump_json(m) + "}" for m in messages(load.batch))
    path = f"/api/streams/{load.stream}/messages"
    return request(load.token, "POST", path, f'{{"messages":[{bodies}]}}'.encode())


_ACTIONS: dict[Action, Callable[[Load], Coroutine[Any, Any, Found]]] = {
    "single": _single,
    "traffic": _traffic,
    "wake": _wake,
    "hold": _hold,
}
