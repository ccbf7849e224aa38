"""What is compared, each the way its users run it.

Every contender is given the same dicts to publish and gives its worker the same dicts to work on; all go through
psycopg 3 with prepared statements and commit each batch. pgmq is measured twice: through its own Python client, and
called as plain SQL with arrays and JSON written and read the way Headgate's SDK does it, much faster than psycopg's,
so that engines are compared. So is Headgate where a benchmark asks for it: its functions called directly, every
commit durable.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, LiteralString, Protocol

import msgspec
import psycopg
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool

import headgate
from headgate.database.columns import array_literal
from headgate.database.encoding import dump_json

from .plan import LANES, MESSAGE_BYTES

Kind = Literal["headgate", "pgmq_sql", "pgmq_client", "copy"]
Read = Literal["read", "read_grouped", "read_grouped_head"]
Acks = Literal["with receive", "apart"]
Batch = list[dict[str, Any]]

VISIBILITY_SECONDS = 30  # pgmq's vt; Headgate's ack_wait has the same default
SHORTEST_POLL, LONGEST_POLL = 0.001, 0.1  # how the SDK waits; pgmq's workers wait the same way


@dataclass(frozen=True)
class LaneSetup:
    """Named lanes: what they are named by, and over how many of them a backlog is spread. Those of keys keep order."""

    by: Literal["channel", "key"]
    count: int
    max_concurrency: int | None = None
    keys: int | None = None  # of each channel, kept in order; none when there are none


@dataclass(frozen=True)
class Queue:
    """A queue of one contender: what a worker process needs to work on it."""

    kind: Kind
    url: str
    name: str
    consumer: str = "workers"
    topic: str | None = None  # pgmq: publish to every queue bound to it
    lanes: LaneSetup | None = None  # Headgate: lanes by hash when there are none; pgmq: groups
    read: Read = "read"  # pgmq: the function that its workers call
    by_sql: Acks | None = None  # Headgate: its functions called directly, not by its SDK; and how it is told of acks


class Contender(Protocol):
    """What a worker process does with a queue."""

    def publish(self, batch: Batch) -> list[int]:
        """Sends and commits; returns the messages' ids."""

    def receive(self, n: int, wait: float = 0) -> list[int]:
        """Takes up to n messages and reads their data; what was taken before is done. Returns their ids."""

    def settle(self) -> None:
        """What was taken last is done, too."""

    def close(self) -> None: ...


def open_queue(queue: Queue) -> Contender:
    """Connects to the queue, as its contender does."""
    if queue.kind == "headgate":
        return HeadgateSql(queue) if queue.by_sql else HeadgateSdk(queue)
    if queue.kind == "pgmq_sql":
        return PgmqSql(queue)
    if queue.kind == "pgmq_client":
        return PgmqClient(queue)
    return RawCopy(queue)


@cache
def messages(n: int) -> Batch:
    """A batch of dicts that are MESSAGE_BYTES long as compact JSON."""
    made = []
    for i in range(n):
        message = {
            "id": 10_000_000 + i,
            "event": "order.created",
            "customer": f"cus_{i % 1000:06d}",
            "cents": 1299,
            "note": "",
        }
        message["note"] = "x" * (MESSAGE_BYTES - len(dump_json(message)))
        made.append(message)
    return made


class HeadgateSdk:
    """The SDK: `send_batch`, and `receive` with the acks of the batch before."""

    def __init__(self, queue: Queue) -> None:
        self._hg = headgate.connect(queue.url)
        self._stream = self._hg.stream(queue.name)
        self._consumer = self._stream.consumer(queue.consumer)
        self._done: list[headgate.Message | str] = []

    def publish(self, batch: Batch) -> list[int]:
        return self._stream.send_batch(batch)

    def receive(self, n: int, wait: float = 0) -> list[int]:
        received = self._consumer.receive(n, wait=wait, acks=self._done)
        self._done = list(dict.fromkeys(m.delivery for m in received))
        for m in received:
            _work_on(m.data)
        return [m.seq for m in received]

    def settle(self) -> None:
        if self._done:
            self._consumer.ack(self._done)
            self._done = []

    def close(self) -> None:
        self._hg.close()


class HeadgateSql:
    """Headgate's functions called directly: no transaction around them, nothing relaxed.

    Acks name each message, as `pgmq.delete` does. They go along with the next receive, or are a call of their own.
    """

    _SEND = "select headgate.send_batch(%s, %s::text[])"
    _RECEIVE = "select * from headgate.receive(%s, %s, %s, acks => %s::text[])"
    _ACK = "select * from headgate.ack(%s, %s, %s::text[])"

    def __init__(self, queue: Queue) -> None:
        self._conn = psycopg.connect(queue.url, autocommit=True)
        self._decode = msgspec.json.Decoder().decode
        self._queue, self._consumer = queue.name, queue.consumer
        self._apart = queue.by_sql == "apart"
        self._done: str | None = None

    def publish(self, batch: Batch) -> list[int]:
        texts: list[str | None] = [dump_json(m) for m in batch]
        row = self._conn.execute(self._SEND, (self._queue, array_literal(texts)), prepare=True).fetchone()
        return list(row[0]) if row else []

    def receive(self, n: int, wait: float = 0) -> list[int]:
        deadline, pause = time.monotonic() + wait, SHORTEST_POLL
        while True:
            params = (self._queue, self._consumer, n, self._done)
            rows = self._conn.execute(self._RECEIVE, params, prepare=True).fetchall()
            self._done = None
            if rows:
                break
            if (left := deadline - time.monotonic()) <= 0:
                return []
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_POLL)
        for row in rows:
            _work_on(self._decode(row[3]))
        self._done = array_literal([row[0] for row in rows])
        if self._apart:
            self.settle()
        return [row[1] for row in rows]

    def settle(self) -> None:
        if self._done:
            self._conn.execute(self._ACK, (self._queue, self._consumer, self._done), prepare=True).fetchall()
            self._done = None

    def close(self) -> None:
        self._conn.close()


class PgmqSql:
    """pgmq's functions called directly: one round trip each, no transaction around them."""

    _SEND = "select * from pgmq.send_batch(%s, %s::jsonb[])"
    _SEND_TOPIC = "select * from pgmq.send_batch_topic(%s, %s::jsonb[])"
    _READ: ClassVar[dict[Read, LiteralString]] = {
        "read": "select * from pgmq.read(%s, %s, %s)",
        "read_grouped": "select * from pgmq.read_grouped(%s, %s, %s)",
        "read_grouped_head": "select * from pgmq.read_grouped_head(%s, %s, %s)",
    }
    _DELETE = "select * from pgmq.delete(%s, %s::bigint[])"

    def __init__(self, queue: Queue) -> None:
        self._conn = psycopg.connect(queue.url, autocommit=True)
        set_json_loads(msgspec.json.Decoder().decode, self._conn)
        self._queue = queue.name
        self._target = queue.topic or queue.name
        self._send = self._SEND_TOPIC if queue.topic else self._SEND
        self._read = self._READ[queue.read]
        self._id = 1 if queue.topic else 0

    def publish(self, batch: Batch) -> list[int]:
        # encoded as our SDK does it: psycopg's own lists would halve pgmq's figure, and say nothing about the engines
        texts: list[str | None] = [dump_json(m) for m in batch]
        rows = self._conn.execute(self._send, (self._target, array_literal(texts)), prepare=True).fetchall()
        return [row[self._id] for row in rows]

    def receive(self, n: int, wait: float = 0) -> list[int]:
        deadline, pause = time.monotonic() + wait, SHORTEST_POLL
        while True:
            rows = self._conn.execute(self._read, (self._queue, VISIBILITY_SECONDS, n), prepare=True).fetchall()
            if rows:
                break
            if (left := deadline - time.monotonic()) <= 0:
                return []
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_POLL)
        for row in rows:
            _work_on(row[5])
        ids = [row[0] for row in rows]
        self._conn.execute(self._DELETE, (self._queue, ids), prepare=True).fetchall()
        return ids

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._conn.close()


class PgmqClient:
    """pgmq's Python client as it comes, with the connection pool that it would make for itself."""

    def __init__(self, queue: Queue) -> None:
        from pgmq import PGMQueue

        self._pool = ConnectionPool(queue.url, min_size=1, max_size=10, open=True)
        self._client: Any = PGMQueue(pool=self._pool, init_extension=False)
        self._queue = queue.name
        self._topic = queue.topic

    def publish(self, batch: Batch) -> list[int]:
        if self._topic:
            return [sent.msg_id for sent in self._client.send_batch_topic(self._topic, batch)]
        return list(self._client.send_batch(self._queue, batch))

    def receive(self, n: int, wait: float = 0) -> list[int]:
        deadline, pause = time.monotonic() + wait, SHORTEST_POLL
        while not (received := self._client.read_batch(self._queue, vt=VISIBILITY_SECONDS, batch_size=n)):
            if (left := deadline - time.monotonic()) <= 0:
                return []
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_POLL)
        for m in received:
            _work_on(m.message)
        ids = [m.msg_id for m in received]
        self._client.delete_batch(self._queue, ids)
        return ids

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._pool.close()


class RawCopy:
    """A raw COPY of the batch, as one block, into a table like a stream's: the most that the server takes."""

    _COPY = "copy bench.message (lane, data) from stdin"

    def __init__(self, queue: Queue) -> None:
        self._conn = psycopg.connect(queue.url)

    def publish(self, batch: Batch) -> list[int]:
        lines = [f"{i % LANES}\t{dump_json(m)}" for i, m in enumerate(batch)]
        with self._conn.cursor() as cursor, cursor.copy(self._COPY) as copy:
            copy.write("\n".join(lines).replace("\\", "\\\\"))
        self._conn.commit()
        return []

    def receive(self, n: int, wait: float = 0) -> list[int]:
        raise NotImplementedError("a COPY has no consumers")

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self._conn.close()


def _work_on(data: dict[str, Any]) -> None:
    """Stands for a worker's handler: it needs the data, decoded."""
    data["id"]
