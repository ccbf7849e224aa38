"""What a session keeps of the streams that it uses: thousands of them have to fit into one connection."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

Db = psycopg.Connection[Any]

KEPT = ("CachedPlan", "CachedPlanSource", "CachedPlanQuery", "SPI Plan", "PL/pgSQL function")
WARM, MORE = 3, 10
MOST = 450 * 1024  # bytes a stream: 372 KB in PostgreSQL 18, 432 in 15
MOST_COLD = 150 * 1024  # once a session keeps 150: see keeps_plans


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


def cost_of_a_stream(db: Db) -> float:
    """Bytes that a session keeps for each further stream that it uses."""
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
    return (kept(db) - before) / MORE


def test_a_stream_costs_a_session_little(db: Db) -> None:
    each = cost_of_a_stream(db)
    assert each < MOST, f"{each / 1024:.0f} KB a stream"


def test_past_150_streams_one_costs_still_less(db: Db) -> None:
    db.execute("set headgate.kept = '150'")
    each = cost_of_a_stream(db)
    assert each < MOST_COLD, f"{each / 1024:.0f} KB a stream"


def test_a_session_counts_the_streams_that_it_uses(db: Db) -> None:
    kept_for = "select headgate.keeps_plans(%s), current_setting('headgate.kept')"
    db.execute("select headgate.create_stream('orders')")
    db.execute("select headgate.send('orders', 'x')")
    db.execute("select headgate.send('orders', 'x')")
    assert db.execute(kept_for, [1]).fetchone() == (True, "1")
    db.execute("set headgate.kept = '150'")
    assert db.execute(kept_for, [1]).fetchone() == (True, "150")
    assert db.execute(kept_for, [2]).fetchone() == (False, "151")
    db.execute("set headgate.kept = 'nonsense'; set headgate.keeps_3 = 'nonsense'")
    assert db.execute(kept_for, [3]).fetchone() == (True, "1")


@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize(
    "settings", ["", ", \"order\" => 'key'", ", filter => array['k.>']", ", max_ack_pending => 7"], ids=str
)
def test_what_is_planned_anew_does_the_same(db: Db, settings: str, is_cold: bool) -> None:
    """Each message once, in the order of its lane; what was nacked and delayed, too; one that two sessions share."""
    db.execute("select headgate.create_stream('orders', lanes => 3)")
    db.execute(f"select headgate.create_consumer('orders', 'c'{settings})")
    if is_cold:
        db.execute("set headgate.kept = '150'")
    seqs: list[int] = []
    for n in range(6):
        row = db.execute(
            "select headgate.send_batch('orders', %s, %s, delays => %s::interval[])",
            (["d"] * 10, [f"k.{i % 4}" for i in range(10)], ["1 ms" if n == i else None for i in range(10)]),
        ).fetchone()
        assert row
        seqs += row[0]
    done: list[tuple[str, int]] = []
    nacked: set[int] = set()
    end = time.monotonic() + 30
    while len(done) < len(seqs):
        assert time.monotonic() < end, f"{len(done)} of {len(seqs)} in 30 s"
        for ack, key, seq, data in db.execute(
            "select ack_id, key, seq, data from headgate.receive('orders', 'c', 7)"
        ).fetchall():
            assert data == "d"
            if seq % 9 == 0 and seq not in nacked:
                nacked.add(seq)
                db.execute("select headgate.nack('orders', 'c', array[%s], '1 ms')", [ack])
            elif db.execute("select acked from headgate.ack('orders', 'c', array[%s])", [ack]).fetchone() == (1,):
                done.append((key, seq))
    assert sorted(seq for _, seq in done) == seqs
    if "order" in settings:
        for key in {key for key, _ in done}:
            of_key = [seq for k, seq in done if k == key]
            assert of_key == sorted(of_key)
    assert db.execute("select headgate.keeps_plans(1)").fetchone() == (not is_cold,)
    assert not db.execute("select * from headgate.receive('orders', 'c', 7)").fetchall()
