"""Processes beside the sessions that work on the same stream: with the SDK, with its worker, and over HTTP.

They are killed (kill -9), stopped past the deadlines of what they hold (SIGSTOP), and so is the HTTP server. What they
have written down is part of the history when it is over. A call without an answer may have happened; it was over when
the server's sessions of the dead process were gone, and for a request whose caller is dead GRACE seconds later.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from ..presets.preset import STREAM, Preset
from ..record import LOST, CallError, Event, HandedMessage, History, Sent
from .client import ClientPlan

MODULE = "headgate.torture.clients.client"
SERVER_NEEDS = ("httpcore", "httptools", "uvicorn")
GRACE = 2.0  # seconds that a server may take for a request whose caller is gone; it is far less
PATIENCE = 30.0  # for a process to begin or to end
SESSIONS = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
OF_SERVER = "headgate"  # what the sessions of `headgate up` are called
UNASKED = CallError(LOST, "its process was killed before an answer came", None)


def missing_for(preset: Preset) -> str | None:
    """What must be installed for its processes."""
    missing = [name for name in SERVER_NEEDS if find_spec(name) is None] if "http" in preset.clients else []
    return f"{preset.name} needs {', '.join(missing)}: pip install 'headgate[server]'" if missing else None


@dataclass
class ClientProcess:
    """A process that works on the stream."""

    kind: str
    name: str
    log: Path
    process: subprocess.Popen[bytes]
    gone: float = float("inf")  # when it, and all that it had asked for, was over

    @property
    def is_ready(self) -> bool:
        """Whether it has begun, or failed."""
        return self.log.stat().st_size > 0 or self.process.poll() is not None


class ClientProcesses:
    """The processes of a history."""

    def __init__(self, url: str, preset: Preset, history: History) -> None:
        self.url = url
        self.preset = preset
        self.history = history
        self.random = random.Random(f"{history.seed}/{preset.name}/clients")
        self.running: list[ClientProcess] = []
        self.over: list[ClientProcess] = []
        self.server: ServerProcess | None = None

    @contextmanager
    def at_work(self) -> Iterator[ClientProcesses]:
        """Starts them; at the end they have ended, and what they did is in the history."""
        with tempfile.TemporaryDirectory(prefix="headgate-clients-") as directory:
            self.directory = Path(directory)
            try:
                if "http" in self.preset.clients:
                    self.server = ServerProcess(self.url, self.directory)
                    self.server.start()
                for kind, number in self.preset.clients.items():
                    for i in range(number):
                        self.begin(kind, f"{kind}{i}")
                wait_until(lambda: all(client.is_ready for client in self.running), "the processes do not begin")
                yield self
                for client in self.running:
                    client.process.terminate()
                for client in self.running:
                    self.end(client)
                for client in [*self.over, *self.running]:
                    self.history.events += self.read(client)
            finally:
                for client in self.running:
                    client.process.kill()
                    client.process.wait()
                if self.server is not None:
                    self.server.kill()

    def begin(self, kind: str, name: str) -> None:
        """Starts one. Each has a name of its own, and so keys of its own, of which it is the only writer."""
        name = f"{name}.{len(self.over)}" if self.over else name
        over_http = kind == "http" and self.server is not None
        plan = ClientPlan(
            kind=kind,
            name=name,
            seed=f"{self.history.seed}/{self.preset.name}/{name}",
            url=self.server.url if over_http and self.server else self.url,
            token=self.server.token if over_http and self.server else "",
            log=str(self.directory / f"{name}.log"),
            stream=STREAM,
            consumers=[c.name for c in self.preset.consumers],
            sizes=list(self.preset.sizes),
            nack=self.preset.nack,
            deaf=self.preset.deaf,
            powers=self.preset.powers,
            has_channels=self.preset.lane_by == "channel",
            is_jumping=name.startswith("sdk0"),
        )
        path = self.directory / f"{name}.plan"
        path.write_bytes(msgspec.json.encode(plan))
        Path(plan.log).touch()
        with (self.directory / f"{name}.err").open("wb") as said:
            process = subprocess.Popen([sys.executable, "-m", MODULE, str(path)], stderr=said)
        self.running.append(ClientProcess(kind, name, Path(plan.log), process))

    def end(self, client: ClientProcess) -> None:
        """It was told to end, and does so in order, unless it had hardly begun."""
        code = client.process.wait(PATIENCE)
        if code not in (0, -signal.SIGTERM):
            said = (self.directory / f"{client.name}.err").read_text(errors="replace")
            raise RuntimeError(f"{client.name} ended with {code}: {said[-3000:]}")
        client.gone = self.history.now()

    # what is done to them

    def choose(self) -> ClientProcess:
        failed = [client for client in self.running if client.process.poll() is not None]
        if failed:
            self.end(failed[0])
        wait_until(lambda: any(client.is_ready for client in self.running), "the processes do not begin")
        return self.random.choice([client for client in self.running if client.is_ready])

    def kill(self) -> str:
        """kill -9 of one of them; another takes its place."""
        client = self.choose()
        client.process.kill()
        client.process.wait()
        if client.kind == "http":
            client.gone = self.history.now() + GRACE
        else:
            wait_until_gone(self.url, client.name)
            client.gone = self.history.now()
        self.running.remove(client)
        self.over.append(client)
        self.begin(client.kind, client.name.partition(".")[0])
        return client.name

    def stop(self) -> str:
        """SIGSTOP of one of them, for a moment or past the deadlines of what it has."""
        client = self.choose()
        longest = max(c.ack_wait for c in self.preset.consumers)
        with stopped(client.process):
            time.sleep(self.random.choice((0.1, 1.5 * longest)))
        return client.name

    def kill_server(self) -> str:
        """kill -9 of the HTTP server; another one listens on the same port."""
        assert self.server is not None
        self.server.kill()
        self.server.start()
        return ""

    # what they did

    def read(self, client: ClientProcess) -> list[Event]:
        """What it wrote down, as calls of the history."""
        events: dict[int, Event] = {}
        for text in client.log.read_text().splitlines():
            number, what, at, *more = json.loads(text)
            if what == "ready":
                continue
            if what == "asked":
                kind, consumer, asked = more
                if kind == "send":
                    asked["messages"] = [Sent(*m) for m in asked["messages"]]
                events[number] = Event(client.name, kind, consumer, asked, self.history.at(at), problem=UNASKED)
                events[number].answered = client.gone
            else:
                answer, problem = more
                event = events[number]
                event.answered = self.history.at(at)
                event.answer = read_answer(event.kind, answer)
                event.problem = None if problem is None else CallError(*problem)
                if client.kind == "http" and event.lost:
                    event.answered = self.surely_over(event)
        return list(events.values())

    def surely_over(self, event: Event) -> float:
        """When a server that was killed could do nothing more for a request that it did not answer."""
        ends = [f.end for f in self.history.faults if f.start < event.answered and f.end > event.called]
        return max([event.answered, *ends])


def read_answer(kind: str, answer: Any) -> Any:
    if kind == "receive":
        return [HandedMessage(*m) for m in answer or []]
    return tuple(answer) if isinstance(answer, list) and kind != "send" else answer


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if process.poll() is not None:
        yield
        return
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def wait_until_gone(url: str, name: str) -> None:
    """Until the database has no session of that name."""

    def are_gone() -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as db:
            return db.execute(SESSIONS, [name]).fetchone() is None
        return False

    wait_until(are_gone, f"the sessions of {name}, which is dead, do not end")


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    patience = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > patience:
            raise RuntimeError(otherwise)
        time.sleep(0.01)


class ServerProcess:
    """`headgate up`."""

    def __init__(self, url: str, directory: Path) -> None:
        self.database = url
        self.directory = directory
        self.port = 0
        self.url = ""
        self.token = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = ["up", "--database", self.database, "--port", str(self.port), "--no-push"]
        with (self.directory / "server.err").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headgate.cli", *command],
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=os.environ | {"HEADGATE_EMBEDDED_DIR": str(self.directory)},
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # the database
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("headgate up: " + (self.directory / "server.err").read_text(errors="replace")[-3000:])
        self.port = int(self.url.rpartition(":")[2])
        self.token = (self.directory / "token").read_text().strip()

    def kill(self) -> None:
        """kill -9, and wait until nothing of it is left."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            wait_until_gone(self.database, OF_SERVER)
