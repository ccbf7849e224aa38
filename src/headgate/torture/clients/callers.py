"""How a process of its own calls Headgate: with the SDK, or with requests to a server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import psycopg

import headgate
from headgate.database.encoding import dump_json
from headgate.errors import ConnectionFailed, Error
from headgate.types import Outgoing

from ..record import LOST, CallError, HandedMessage, Sent, problem_of

REQUEST_TIMEOUT = 30.0
T = TypeVar("T")


class ServerAccess(msgspec.Struct):
    """Where the stream is, and what it is called."""

    url: str  # of the database, or of the HTTP server
    token: str
    stream: str
    consumers: list[str]


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

    def __init__(self, access: ServerAccess) -> None:
        hg = insist(lambda: headgate.connect(access.url, max_connections=2, timeout=5))
        self.stream = insist(lambda: hg.stream(access.stream))
        self.consumers = insist(lambda: {name: self.stream.consumer(name) for name in access.consumers})

    def text(self, data: dict[str, Any]) -> str:
        return dump_json(data)

    def send(self, messages: list[Sent]) -> list[int]:
        outgoing = [Outgoing(json.loads(m.data), m.key, id=m.id, channel=m.channel) for m in messages]
        return self.stream.send_batch(outgoing)

    def receive(
        self, consumer: str, n: int, acks: list[str], wait: float, ack_wait: float | None = None
    ) -> list[HandedMessage]:
        got = self.consumers[consumer].receive(n, acks=acks, wait=wait, ack_wait=ack_wait)
        return [HandedMessage(m.ack_id, m.seq, m.key, m.text, m.attempt) for m in got]

    def settle(self, kind: str, consumer: str, acks: list[str], seconds: float | None) -> tuple[int, int]:
        more = {} if seconds is None else {"by" if kind == "extend" else "delay": seconds}
        done = getattr(self.consumers[consumer], kind)(acks, **more)
        return done.settled, done.stale

    def discard(self, consumer: str, seqs: list[int]) -> tuple[int, int, str | None]:
        done = self.consumers[consumer].discard_some(seqs)
        return done.discarded, done.held, done.more

    def replay(self, consumer: str, seqs: list[int]) -> int:
        return self.consumers[consumer].replay(seqs=seqs).replayed


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

    def __init__(self, access: ServerAccess) -> None:
        self.access = access
        self.address = access.url.removeprefix("http://")
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
        headers = {"Authorization": f"Bearer {self.access.token}", "Content-Type": "application/json"}
        try:
            self.connection.request("POST", f"/api/streams/{self.access.stream}/{path}", json.dumps(body), headers)
            answer = self.connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.connection = None
            raise ConnectionFailed(f"{type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise RefusedRequest(answer.status, **json.loads(content)["error"])
        return bytes(msgspec.json.decode(content, type=dict[str, msgspec.Raw])["data"])

    def text(self, data: dict[str, Any]) -> str:
        return json.dumps(data)

    def send(self, messages: list[Sent]) -> list[int]:
        body = [{"data": json.loads(m.data), "key": m.key, "id": m.id, "channel": m.channel} for m in messages]
        return list(json.loads(self.post("messages", {"messages": body}))["seqs"])

    def receive(
        self, consumer: str, n: int, acks: list[str], wait: float, ack_wait: float | None = None
    ) -> list[HandedMessage]:
        path = f"consumers/{consumer}/receive?batch_size={n}&wait_ms={round(1000 * wait)}"
        if ack_wait is not None:
            path += f"&ack_wait_ms={round(1000 * ack_wait)}"
        got = msgspec.json.decode(self.post(path, {"ack_ids": acks}), type=list[Delivered])
        return [
            HandedMessage(d.ack_id, d.message.seq, d.message.key, bytes(d.message.data).decode(), d.attempt)
            for d in got
        ]

    def settle(self, kind: str, consumer: str, acks: list[str], seconds: float | None) -> tuple[int, int]:
        more = {} if seconds is None else {"by_ms" if kind == "extend" else "delay_ms": round(1000 * seconds)}
        done = json.loads(self.post(f"consumers/{consumer}/{kind}", {"ack_ids": acks, **more}))
        stale = int(done.pop("stale"))
        (settled,) = done.values()
        return settled, stale

    def discard(self, consumer: str, seqs: list[int]) -> tuple[int, int, str | None]:
        done = json.loads(self.post(f"consumers/{consumer}/discard", {"seqs": seqs}))
        return done["discarded"], done["held"], done["more"]

    def replay(self, consumer: str, seqs: list[int]) -> int:
        return int(json.loads(self.post(f"consumers/{consumer}/replay", {"seqs": seqs}))["replayed"])


class RefusedRequest(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, hint: str | None) -> None:
        super().__init__(message)
        codes = {"database_away": LOST, "conflict": "40001"}
        self.problem = CallError(codes.get(code, f"HTTP {status} {code}"), message, hint)


def problem_with(error: Exception) -> CallError:
    """What an error says; one that says nothing of what became of the call is LOST."""
    if isinstance(error, RefusedRequest):
        return error.problem
    if isinstance(error, ConnectionFailed):
        return CallError(LOST, error.message, error.hint)
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error):
        return problem_of(cause)
    assert isinstance(error, Error)
    return CallError(error.sqlstate or type(error).__name__, error.message, error.hint)
