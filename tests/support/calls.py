"""The engine's SQL functions as plain calls, for the tests that speak SQL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

Db = psycopg.Connection[Any]


class Received(NamedTuple):
    ack_id: str
    seq: int
    key: str | None
    data: str
    headers: dict[str, Any] | None
    channel: str | None
    attempt: int
    created_at: Any

    @property
    def delivery(self) -> str:
        """The ack_id of the whole delivery."""
        return self.ack_id.rpartition(".")[0]


def value(db: Db, query: str, *parameters: object) -> Any:
    """The first column of the first row."""
    row = db.execute(query, parameters).fetchone()
    return row[0] if row else None


def column(db: Db, query: str, *parameters: object) -> list[Any]:
    return [row[0] for row in db.execute(query, parameters)]


def record(db: Db, query: str, *parameters: object) -> dict[str, Any]:
    """The only row."""
    rows = db.cursor(row_factory=dict_row).execute(query, parameters).fetchall()
    assert len(rows) == 1, rows
    return rows[0]


def call(db: Db, function: str, *arguments: object, **named: object) -> Any:
    """Calls headgate.<function> and returns its value. Dicts are passed as jsonb."""
    values = [Jsonb(v) if isinstance(v, dict) else v for v in (*arguments, *named.values())]
    parameters = ", ".join(["%s"] * len(arguments) + [f'"{name}" => %s' for name in named])
    return value(db, f"select headgate.{function}({parameters})", *values)


def send(db: Db, stream: str, *datas: str, key: str | None = None, **named: object) -> list[int]:
    """Sends one message after the other, each in a call of its own."""
    return [call(db, "send", stream, data, key, **named) for data in datas]


def forge_dead(db: Db, stream: str, data: str, **named: object) -> None:
    """A dead letter that somebody has written by hand, as they could before such streams took none."""
    (of,) = column(db, "select dead_of from headgate.stream where name = %s", stream)
    db.execute("update headgate.stream set dead_of = null where name = %s", (stream,))
    send(db, stream, data, **named)  # type: ignore[arg-type]
    db.execute("update headgate.stream set dead_of = %s where name = %s", (of, stream))


def send_batch(db: Db, stream: str, datas: Sequence[str], **arrays: object) -> list[int]:
    return call(db, "send_batch", stream, list(datas), **arrays)  # type: ignore[no-any-return]


def tick(db: Db, stream: str) -> None:
    """Makes everything that is committed readable. (Ticks are at least a millisecond apart, and receive makes one only
    now and then while some lane has work left: not what a test wants to depend on.)"""
    time.sleep(0.0015)
    call(db, "tick", stream)


def receive(
    db: Db, stream: str, consumer: str, n: int = 10, worker: str | None = None, acks: Sequence[str] | None = None
) -> list[Received]:
    """One receive, after a tick when that is possible here."""
    if db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        tick(db, stream)
    cursor = db.cursor(row_factory=class_row(Received))
    return cursor.execute(
        "select * from headgate.receive(%s, %s, %s, %s, %s)",
        (stream, consumer, n, worker, list(acks) if acks else None),
    ).fetchall()


def seqs(messages: Sequence[Received]) -> list[int]:
    return [m.seq for m in messages]


def datas(messages: Sequence[Received]) -> list[str]:
    return [m.data for m in messages]


def ids(messages: Sequence[Received]) -> list[str]:
    return [m.ack_id for m in messages]


def ack(db: Db, stream: str, consumer: str, messages: Sequence[Received | str]) -> tuple[int, int]:
    """-> acked, stale"""
    given = [m if isinstance(m, str) else m.ack_id for m in messages]
    return db.execute("select * from headgate.ack(%s, %s, %s)", (stream, consumer, given)).fetchone()  # type: ignore[return-value]


def nack(
    db: Db,
    stream: str,
    consumer: str,
    messages: Sequence[Received | str],
    delay: str | None = None,
    error: str | None = None,
) -> tuple[int, int]:
    """-> nacked, stale"""
    given = [m if isinstance(m, str) else m.ack_id for m in messages]
    return db.execute(  # type: ignore[return-value]
        "select * from headgate.nack(%s, %s, %s, %s, %s)", (stream, consumer, given, delay, error)
    ).fetchone()


class Discarded(NamedTuple):
    discarded: int
    held: int
    more: str | None


def discard(db: Db, stream: str, consumer: str, seqs: Sequence[int] | None = None, **named: object) -> Discarded:
    """One call of headgate.discard."""
    if seqs is not None:
        named["seqs"] = list(seqs)
    named.setdefault(
        "open", False if db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE and db.autocommit else None
    )
    names = "".join(f', "{name}" => %({name})s' for name in named)
    cursor = db.cursor(row_factory=class_row(Discarded))
    row = cursor.execute(
        f"select * from headgate.discard(%(s)s, %(c)s{names})", {"s": stream, "c": consumer, **named}
    ).fetchone()
    assert row is not None
    return row


def discard_all(db: Db, stream: str, consumer: str, **named: object) -> int:
    """Calls it until there is no more."""
    total, go_on = 0, None
    while True:
        done = discard(db, stream, consumer, go_on=go_on, **named)
        total += done.discarded
        if (go_on := done.more) is None:
            return total


def extend(db: Db, stream: str, consumer: str, messages: Sequence[Received | str], by: str) -> tuple[int, int]:
    """-> extended, stale"""
    given = [m if isinstance(m, str) else m.ack_id for m in messages]
    return db.execute("select * from headgate.extend(%s, %s, %s, %s)", (stream, consumer, given, by)).fetchone()  # type: ignore[return-value]


def drain(db: Db, stream: str, consumer: str) -> list[str]:
    """Receives and acks everything that is to be had; the data, sorted."""
    got: list[str] = []
    while batch := receive(db, stream, consumer, 100):
        got += datas(batch)
        ack(db, stream, consumer, batch)
    return sorted(got)


def facts(db: Db, stream: str, consumer: str) -> dict[str, Any]:
    """The consumer's row of the view headgate.consumers."""
    return record(db, "select * from headgate.consumers where stream = %s and name = %s", stream, consumer)


def pass_time(db: Db, by: str) -> None:
    """The engine's clock: everything that waits for a time, in every stream, comes nearer by this interval."""
    with db.transaction():
        db.execute("update headgate.delivery set deadline = deadline - %s::interval", [by])
        db.execute(
            "update headgate.cursor set expires_at = expires_at - %s::interval, next_at = next_at - %s::interval",
            [by, by],
        )
        db.execute(
            "update headgate.parked set visible_at = visible_at - %s::interval, parked_at = parked_at - %s::interval",
            [by, by],
        )
        db.execute(
            "update headgate.tick set at = at - %s::interval, locks_checked_at = locks_checked_at - %s::interval",
            [by, by],
        )
        db.execute("update headgate.message_id set at = at - %s::interval", [by])
        db.execute(
            "update headgate.worker set until = until - %s::interval, seen_at = seen_at - %s::interval", [by, by]
        )
        for stream in column(db, "select id from headgate.stream"):
            db.execute(
                f"update headgate.message_{stream} set deliver_at = deliver_at - %s::interval "
                "where deliver_at is not null",
                [by],
            )


def same_lane_keys(db: Db, lanes: int, count: int, prefix: str = "k") -> list[str]:
    """Keys that share one lane."""
    return column(
        db,
        "select %s || i from generate_series(1, 100000) i "
        "where (hashtextextended(%s || i, 0) %% %s + %s) %% %s = 0 limit %s",
        prefix, prefix, lanes, lanes, lanes, count,
    )  # fmt: skip
