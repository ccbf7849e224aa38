"""What a session keeps of the streams that it uses: thousands of them have to fit into one connection."""

from __future__ import annotations

from typing import Any

import psycopg

Db = psycopg.Connection[Any]

KEPT = ("CachedPlan", "CachedPlanSource", "CachedPlanQuery", "SPI Plan", "PL/pgSQL function")
WARM, MORE = 3, 10
MOST = 430 * 1024  # bytes a stream: 365 KB in PostgreSQL 18, 409 in 15


def kept(db: Db) -> int:
    """Bytes of plans and compiled functions."""
    row = db.execute(
        "select sum(total_bytes)::bigint from pg_backend_memory_contexts where name = any(%s)", [list(KEPT)]
    ).fetchone()
    assert row
    return int(row[0])


def use(db: Db, stream: str, number: int) -> None:
    """Send, receive, ack, and find nothing more, with three consumers."""
    db.execute("select headgate.send_batch(%s, array['a', 'b', 'c', 'd'], array['1', '2', '3', '4'])", [stream])
    for consumer in ("a", "b", "c"):
        receive = f"select ack_id from headgate.receive_{number}(%s, %s, 'w', %s::text[], false)"
        first = [row[0] for row in db.execute(receive, (consumer, 1, None))]
        rest = [row[0] for row in db.execute(receive, (consumer, 10, first))]
        assert len(first + rest) == 4
        db.execute("select headgate.ack(%s, %s, %s)", (stream, consumer, rest))
        assert not db.execute(receive, (consumer, 10, None)).fetchall()


def test_a_stream_costs_a_session_little(db: Db) -> None:
    numbers = {}
    for n in range(WARM + MORE):
        name = f"s{n}"
        row = db.execute("select headgate.create_stream(%s)", [name]).fetchone()
        assert row
        numbers[name] = int(row[0])
        for consumer in ("a", "b", "c"):
            db.execute("select headgate.create_consumer(%s, %s)", (name, consumer))
    streams = list(numbers.items())
    for name, number in streams[:WARM]:
        use(db, name, number)
    before = kept(db)
    for name, number in streams[WARM:]:
        use(db, name, number)
    each = (kept(db) - before) / MORE
    assert each < MOST, f"{each / 1024:.0f} KB a stream"
