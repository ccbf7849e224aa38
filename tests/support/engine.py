"""The engine's SQL functions as Python functions: what the tests of the engine have in common."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import NamedTuple

from psycopg import Connection

# Nothing is delivered any more when this many receives in a row, a few milliseconds apart, found nothing.
QUIET = 4


class Received(NamedTuple):
    ack_id: str
    seq: int
    key: str | None
    data: str
    attempt: int


def create(
    db: Connection,
    *consumers: str,
    lanes: int = 4,
    order: str = "none",
    ack_wait: timedelta = timedelta(seconds=30),
    max_deliver: int | None = None,
) -> None:
    """Make the stream `s` (unless it exists) and consumers."""
    db.execute("select headgate.create_stream('s', lanes => %s, if_not_exists => true)", [lanes])
    for name in consumers:
        db.execute(
            "select headgate.create_consumer('s', %s, \"order\" => %s, ack_wait => %s, max_deliver => %s)",
            [name, order, ack_wait, max_deliver],
        )


def scalar(db: Connection, query: str, *parameters: object) -> object:
    row = db.execute(query, parameters).fetchone()
    return row[0] if row else None


def send(db: Connection, data: str, key: str | None = None, delay: timedelta | None = None) -> int:
    seq = scalar(db, "select headgate.send('s', %s, %s, delay => %s)", data, key, delay)
    assert isinstance(seq, int)
    return seq


def send_many(db: Connection, datas: list[str], keys: list[str] | None = None) -> list[int]:
    seqs = scalar(db, "select headgate.send_batch('s', %s, %s)", datas, keys)
    assert isinstance(seqs, list)
    return seqs


def tick(db: Connection) -> int:
    """Make a tick that is newer than what was committed before."""
    time.sleep(0.002)
    made = scalar(db, "select headgate.tick('s')")
    assert isinstance(made, int)
    return made


def receive(db: Connection, consumer: str = "c", n: int = 1000, acks: list[str] | None = None) -> list[Received]:
    rows = db.execute(
        "select ack_id, seq, key, data, attempt from headgate.receive('s', %s, %s, acks => %s)", [consumer, n, acks]
    )
    return [Received(*row) for row in rows]


def ack(db: Connection, messages: list[Received], consumer: str = "c") -> tuple[int, int]:
    """How many were acked and how many acks were stale."""
    row = db.execute("select * from headgate.ack('s', %s, %s)", [consumer, [m.ack_id for m in messages]]).fetchone()
    assert row is not None
    return row[0], row[1]


def take(db: Connection, consumer: str = "c", n: int = 1000) -> list[Received]:
    """Receive until nothing comes any more, acking nothing."""
    taken: list[Received] = []
    empty = 0
    while empty < QUIET:
        found = receive(db, consumer, n)
        taken += found
        empty = 0 if found else empty + 1
        time.sleep(0 if found else 0.003)
    return taken


def drain(db: Connection, consumer: str = "c", n: int = 1000) -> list[Received]:
    """Receive and ack until nothing comes any more."""
    drained: list[Received] = []
    empty = 0
    while empty < QUIET:
        found = receive(db, consumer, n)
        if found:
            assert ack(db, found, consumer) == (len(found), 0)
        drained += found
        empty = 0 if found else empty + 1
        time.sleep(0 if found else 0.003)
    return drained


def datas(messages: list[Received]) -> list[str]:
    return [m.data for m in messages]
