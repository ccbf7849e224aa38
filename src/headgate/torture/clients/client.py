"""A process that works on the stream as a program of a user would: `python -m headgate.torture.clients.client PLAN`.

Three kinds: `sdk` calls the SDK, `http` a `headgate up` with a token, `loop` is the SDK's worker. Each call is two
lines of the log: what was asked before, what was answered after. A line is one write(2), so that a kill -9 loses
nothing that was asked. SIGTERM ends it in order. The times are CLOCK_MONOTONIC's, which all processes share.

Of the worker's loop only its handler is seen: the message was claimed at some time before it ("receive", since the
start of the process), and may be acked at any time after it returned, or nacked if it failed (without an answer).
"""

from __future__ import annotations

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
from typing import Any

import msgspec
import psycopg

import headgate
from headgate.aio import AsyncHeadgate
from headgate.errors import Error

from ..record import LOST, CallError, HandedMessage, Sent
from .callers import Http, RefusedRequest, Sdk, ServerAccess, insist, problem_with

POLLS = (0.0, 0.0, 0.1, 0.5)  # seconds that a receive waits
JUMPS = (-86_400.0, -5.0, 5.0, 86_400.0)


class ClientPlan(ServerAccess):
    """What a client is to do."""

    kind: str
    name: str
    seed: str
    log: str
    sizes: list[int]
    nack: float
    deaf: float
    powers: float = 0.0
    has_channels: bool = False
    is_jumping: bool = False  # its wall clock jumps


class CallLog:
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

    def answered(self, number: int, answer: Any, problem: CallError | None = None) -> None:
        self._write([number, "answered", time.monotonic(), answer, problem])

    def _write(self, line: list[Any]) -> None:
        text = json.dumps(line).encode() + b"\n"
        assert os.write(self._file, text) == len(text)


@dataclass
class Client:
    """Sends, receives and settles as chance has it, one call after the other."""

    plan: ClientPlan
    caller: Sdk | Http
    log: CallLog

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)
        self.held: dict[str, list[HandedMessage]] = {name: [] for name in self.plan.consumers}
        self.sent = 0
        self.is_over = False
        self.seen: list[int] = []  # seqs that it has met last
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
        except (Error, psycopg.Error, RefusedRequest) as error:
            problem = problem_with(error)
            self.log.answered(number, None, problem)
            if problem.state == LOST:
                time.sleep(0.05)
            return None
        self.log.answered(number, answer)
        return answer

    def step(self) -> None:
        consumer = self.random.choice(self.plan.consumers)
        if self.seen and self.random.random() < self.plan.powers:
            self.use_power(consumer)
        elif self.random.random() < 0.25:
            self.send()
        elif self.held[consumer] and self.random.random() < 0.6:
            self.settle(consumer)
        else:
            self.receive(consumer)

    def send(self) -> None:
        messages = self.unsure or [self.message() for _ in range(self.random.randint(1, 4))]
        answer = self.call("send", None, lambda: self.caller.send(messages), messages=messages)
        self.unsure = messages if answer is None else []
        self.meet(answer or [])

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
        self.meet([m.seq for m in got or []])
        if got and self.random.random() >= self.plan.deaf:
            self.held[consumer] += got

    def meet(self, seqs: list[int]) -> None:
        self.seen = [*self.seen, *seqs][-40:]

    def use_power(self, consumer: str) -> None:
        """Give up a few of the messages that it has met, or have them come again."""
        seqs = sorted(set(self.random.sample(self.seen, min(3, len(self.seen)))))
        if self.random.random() < 0.5:
            ask = lambda: counted(self.caller.discard(consumer, seqs))  # noqa: E731
            self.call("discard", consumer, ask, seqs=seqs, keys=None, open=False)
        else:
            again = lambda: self.caller.replay(consumer, seqs)  # noqa: E731
            self.call("replay", consumer, again, seqs=seqs, given=len(seqs), open=False)

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


def counted(done: tuple[int, int, str | None]) -> int | list[Any]:
    """A number when it was all, as sessions write it down."""
    return done[0] if done[1:] == (0, None) else list(done)


def loop(plan: ClientPlan, log: CallLog) -> None:
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


def main(client: type[Client] = Client) -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ClientPlan)
    log = CallLog(plan.log)
    go_by(plan.name)
    if plan.is_jumping:
        jump(plan.seed)
    if plan.kind == "loop":
        loop(plan, log)
    else:
        one = client(plan, Http(plan) if plan.kind == "http" else Sdk(plan), log)
        signal.signal(signal.SIGTERM, one.end)
        log.ready()
        one.run()


if __name__ == "__main__":
    main()
