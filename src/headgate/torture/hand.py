"""A process that works on the stream as a program of a user would: `python -m headgate.torture.hand PLAN`.

Three kinds: `sdk` calls the SDK, `http` a `headgate up` with a token, `loop` is the SDK's worker. Each call is two
lines of the log: what was asked before, what was answered after. A line is one write(2), so that a kill -9 loses
nothing that was asked. SIGTERM ends it in order. The times are CLOCK_MONOTONIC's, which all processes share.

Of the worker's loop only its handler is seen: the message was claimed at some time before it ("receive", since the
start of the process), and may be acked at any time after it returned, or nacked if it failed (without an answer).
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg

import headgate
from headgate.aio import AsyncHeadgate
from headgate.database.encoding import dump_json
from headgate.errors import ConnectionFailed, Error
from headgate.types import Outgoing

from .record import LOST, Message, Problem, Sent, problem_of

POLLS = (0.0, 0.0, 0.1, 0.5)  # seconds that a receive waits
REQUEST_TIMEOUT = 30.0
T = TypeVar("T")
JUMPS = (-86_400.0, -5.0, 5.0, 86_400.0)


class Plan(msgspec.Struct):
    """What a hand is told."""

    kind: str
    name: str
    seed: str
    url: str  # of the database, or of the HTTP server
    token: str
    log: str
    stream: str
    consumers: list[str]
    sizes: list[int]
    nack: float
    deaf: float
    has_channels: bool = False
    is_jumping: bool = False  # its wall clock jumps


class Log:
    """What was asked and what was answered."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._numbers = count(1)

    def ready(self) -> None:
        self._write([0, "ready", time.monotonic()])

    def asked(self, kind: str, consumer: str | None, asked: dict[str, Any], at: float | None = None) -> int:
        number = next(self._numbers)
        self._write([number, "asked", at or time.monotonic(), kind, consumer, asked])
        return number

    def answered(self, number: int, answer: Any, problem: Problem | None = None) -> None:
        self._write([number, "answered", time.monotonic(), answer, problem])

    def _write(self, line: list[Any]) -> None:
        text = json.dumps(line).encode() + b"\n"
        assert os.write(self._file, text) == len(text)


def insist(what: Callable[[], T]) -> T:
    """Again and again, until there is somebody to connect to."""
    while True:
        try:
            return what()
        except ConnectionFailed:
            time.sleep(0.05)


class Sdk:
    """With the SDK."""

    settling = ("nack", "release", "extend")
    settles_whole_deliveries = True

    def __init__(self, plan: Plan) -> None:
        hg = insist(lambda: headgate.connect(plan.url, max_connections=2, timeout=5))
        self.stream = insist(lambda: hg.stream(plan.stream))
        self.consumers = insist(lambda: {name: self.stream.consumer(name) for name in plan.consumers})

    def text(self, data: dict[str, Any]) -> str:
        return dump_json(data)

    def send(self, messages: list[Sent]) -> list[int]:
        outgoing = [Outgoing(json.loads(m.data), m.key, id=m.id, channel=m.channel) for m in messages]
        return self.stream.send_batch(outgoing)

    def receive(
        self, consumer: str, n: int, acks: list[str], wait: float, ack_wait: float | None = None
    ) -> list[Message]:
        got = self.consumers[consumer].receive(n, acks=acks, wait=wait, ack_wait=ack_wait)
        return [Message(m.ack_id, m.seq, m.key, m.text, m.attempt) for m in got]

    def settle(self, kind: str, consumer: str, acks: list[str], seconds: float | None) -> tuple[int, int]:
        more = {} if seconds is None else {"by" if kind == "extend" else "delay": seconds}
        done = getattr(self.consumers[consumer], kind)(acks, **more)
        return done.settled, done.stale


class Received(msgspec.Struct):
    seq: int
    key: str | None
    data: msgspec.Raw  # as it was written


class Delivered(msgspec.Struct):
    ack_id: str
    message: Received
    attempt: int


class Http:
    """With requests to a server."""

    settling = ("nack", "extend")
    settles_whole_deliveries = False  # one may have messages of other callers

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.address = plan.url.removeprefix("http://")
        self.connection: http.client.HTTPConnection | None = None

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=REQUEST_TIMEOUT)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionFailed(str(error)) from error
        return connection

    def post(self, path: str, body: Any) -> bytes:
        """The answer's data, as it came."""
        if self.connection is None:
            self.connection = insist(self.connect)  # nothing was asked of a server that is not there
        headers = {"Authorization": f"Bearer {self.plan.token}", "Content-Type": "application/json"}
        try:
            self.connection.request("POST", f"/api/streams/{self.plan.stream}/{path}", json.dumps(body), headers)
            answer = self.connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.connection = None
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise Refused(answer.status, **json.loads(content)["error"])
        return bytes(msgspec.json.decode(content, type=dict[str, msgspec.Raw])["data"])

    def text(self, data: dict[str, Any]) -> str:
        return json.dumps(data)

    def send(self, messages: list[Sent]) -> list[int]:
        body = [{"data": json.loads(m.data), "key": m.key, "id": m.id, "channel": m.channel} for m in messages]
        return list(json.loads(self.post("messages", {"messages": body}))["seqs"])

    def receive(
        self, consumer: str, n: int, acks: list[str], wait: float, ack_wait: float | None = None
    ) -> list[Message]:
        path = f"consumers/{consumer}/receive?batch_size={n}&wait_ms={round(1000 * wait)}"
        if ack_wait is not None:
            path += f"&ack_wait_ms={round(1000 * ack_wait)}"
        got = msgspec.json.decode(self.post(path, {"ack_ids": acks}), type=list[Delivered])
        return [Message(d.ack_id, d.message.seq, d.message.key, bytes(d.message.data).decode(), d.attempt) for d in got]

    def settle(self, kind: str, consumer: str, acks: list[str], seconds: float | None) -> tuple[int, int]:
        more = {} if seconds is None else {"by_ms" if kind == "extend" else "delay_ms": round(1000 * seconds)}
        done = json.loads(self.post(f"consumers/{consumer}/{kind}", {"ack_ids": acks, **more}))
        stale = int(done.pop("stale"))
        (settled,) = done.values()
        return settled, stale


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, hint: str | None) -> None:
        super().__init__(message)
        codes = {"database_away": LOST, "conflict": "40001"}
        self.problem = Problem(codes.get(code, f"HTTP {status} {code}"), message, hint)


def problem_with(error: Exception) -> Problem:
    """What an error says; one that says nothing of what became of the call is LOST."""
    if isinstance(error, Refused):
        return error.problem
    if isinstance(error, ConnectionFailed):
        return Problem(LOST, error.message, error.hint)
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error):
        return problem_of(cause)
    assert isinstance(error, Error)
    return Problem(error.sqlstate or type(error).__name__, error.message, error.hint)


@dataclass
class Hand:
    """Sends, receives and settles as chance has it, one call after the other."""

    plan: Plan
    caller: Sdk | Http
    log: Log

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)
        self.held: dict[str, list[Message]] = {name: [] for name in self.plan.consumers}
        self.sent = 0
        self.is_over = False
        self.unsure: list[Sent] = []  # sent without an answer: to be sent again, with the same ids

    def run(self) -> None:
        while not self.is_over:
            self.step()
            time.sleep(self.random.random() * 0.01)

    def end(self, *_: object) -> None:
        self.is_over = True

    def call(self, kind: str, consumer: str | None, ask: Callable[[], Any], **asked: Any) -> Any:
        """One call, written down; None when it was refused or not answered."""
        number = self.log.asked(kind, consumer, asked)
        try:
            answer = ask()
        except (Error, psycopg.Error, Refused) as error:
            problem = problem_with(error)
            self.log.answered(number, None, problem)
            if problem.state == LOST:
                time.sleep(0.05)
            return None
        self.log.answered(number, answer)
        return answer

    def step(self) -> None:
        consumer = self.random.choice(self.plan.consumers)
        if self.random.random() < 0.25:
            self.send()
        elif self.held[consumer] and self.random.random() < 0.6:
            self.settle(consumer)
        else:
            self.receive(consumer)

    def send(self) -> None:
        messages = self.unsure or [self.message() for _ in range(self.random.randint(1, 4))]
        answer = self.call("send", None, lambda: self.caller.send(messages), messages=messages)
        self.unsure = messages if answer is None else []

    def message(self) -> Sent:
        self.sent += 1
        number = self.random.randrange(2)
        key = None if self.random.random() < 0.2 else f"a.{self.plan.name}-{number}"
        text = self.caller.text({"key": key, "n": self.sent, "by": self.plan.name})
        channel = f"t{number if key else 0}" if self.plan.has_channels else None
        return Sent(key, text, channel, f"{self.plan.name}-{self.sent:06}")

    def receive(self, consumer: str) -> None:
        n, wait = self.random.choice(self.plan.sizes), self.random.choice(POLLS)
        acks = self.pick(consumer) if self.random.random() < 0.4 else []
        ack_wait = self.random.choice((0.05, 0.4, 1.5)) if self.random.random() < 0.15 else None
        ask = lambda: self.caller.receive(consumer, n, acks, wait, ack_wait)  # noqa: E731
        got = self.call("receive", consumer, ask, n=n, acks=acks, open=False, ack_wait=ack_wait)
        if got and self.random.random() >= self.plan.deaf:
            self.held[consumer] += got

    def pick(self, consumer: str) -> list[str]:
        """Some of the messages, or a whole delivery, which it then has no more."""
        held = self.held[consumer]
        if not held:
            return []
        delivery = self.random.choice(held).delivery
        if self.random.random() < 0.3:
            self.held[consumer] = [m for m in held if m.delivery != delivery]
            if self.caller.settles_whole_deliveries:
                return [delivery]
            return [m.ack_id for m in held if m.delivery == delivery]
        picked = self.random.sample(held, self.random.randint(1, min(len(held), 20)))
        self.held[consumer] = [m for m in held if m not in picked]
        return [m.ack_id for m in picked]

    def settle(self, consumer: str) -> None:
        kind = self.random.choice(self.caller.settling) if self.random.random() < self.plan.nack else "ack"
        if kind == "extend":
            some = self.random.sample(self.held[consumer], min(3, len(self.held[consumer])))
            self.settle_by(kind, consumer, [m.ack_id for m in some], by=self.random.choice((0.0, 0.02, 0.3, 0.8, 1.2)))
        elif kind == "nack":
            one_by_one = [a for a in self.pick(consumer) if a.count(".") == 2]
            self.settle_by(kind, consumer, one_by_one, delay=self.random.choice((0.0, 0.05, 0.3)))
        else:
            self.settle_by(kind, consumer, self.pick(consumer))

    def settle_by(self, kind: str, consumer: str, acks: list[str], **seconds: float) -> None:
        if acks:
            length = next(iter(seconds.values()), None)
            ask = lambda: self.caller.settle(kind, consumer, acks, length)  # noqa: E731
            self.call(kind, consumer, ask, acks=acks, open=False, **seconds)


def loop(plan: Plan, log: Log) -> None:
    """The SDK's worker, of one of the consumers."""
    began, chance = time.monotonic(), random.Random(plan.seed)
    name = chance.choice(plan.consumers)
    lock = threading.Lock()

    def handle(message: Any) -> None:
        with lock:
            number = log.asked("receive", name, {"n": 1, "acks": [], "open": False}, began)
            log.answered(number, [[message.ack_id, message.seq, message.key, message.text, message.attempt]])
        time.sleep(chance.random() * 0.01)
        fails = chance.random() < plan.nack
        with lock:
            log.asked("nack" if fails else "ack", name, {"acks": [message.ack_id], "open": False})
        if fails:
            raise headgate.Retry(delay=0.05)

    worker = Sdk(plan).consumers[name].worker(handle, concurrency=4, batch_size=10)
    log.ready()
    insist(worker.run)  # until SIGTERM


def go_by(name: str) -> None:
    """The server's sessions of this process are called so, for who waits until they are gone."""
    for client in (headgate.Headgate, AsyncHeadgate):
        settings = client._settings
        setattr(client, "_settings", lambda self, of=settings: of(self) | {"application_name": name})  # noqa: B010


def jump(seed: str) -> None:
    """From now on time.time() and time.time_ns(), wherever Headgate and its driver call them, are wrong, and jump.

    Not datetime.now(), which asks the system itself, nor time.monotonic(), which no clock that is set can change.
    """
    chance, right, off = random.Random(seed), time.time, [0.0]

    def wrong() -> float:
        if chance.random() < 0.1:
            off[0] = chance.choice(JUMPS)
        return right() + off[0]

    def wrong_ns() -> int:
        return int(wrong() * 1e9)

    instead = {id(time.time): wrong, id(time.time_ns): wrong_ns}
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] in ("headgate", "psycopg", "psycopg_pool", "time"):
            for name, value in list(vars(module).items()):
                if id(value) in instead:
                    setattr(module, name, instead[id(value)])


def main(hand: type[Hand] = Hand) -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    log = Log(plan.log)
    go_by(plan.name)
    if plan.is_jumping:
        jump(plan.seed)
    if plan.kind == "loop":
        loop(plan, log)
    else:
        one = hand(plan, Http(plan) if plan.kind == "http" else Sdk(plan), log)
        signal.signal(signal.SIGTERM, one.end)
        log.ready()
        one.run()


if __name__ == "__main__":
    main()
