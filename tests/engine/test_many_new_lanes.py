"""Thousands of lanes that nobody knows yet: found quickly, by several at once, without memory that others need."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from support.calls import Db, call, send_batch, value

S, C = "s", "c"
LANES = 20_000


@pytest.fixture
def crowded(db: Db) -> Db:
    """A message of each of many lanes, and statistics: with these, planners choose otherwise."""
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    for start in range(0, LANES, 10_000):
        names = [f"t{i}" for i in range(start, start + 10_000)]
        send_batch(db, S, names, channels=names)
    db.execute("analyze")
    return db


@pytest.mark.parametrize("alone", [True, False])
def test_found_by_several_at_once(crowded: Db, database_url: str, alone: bool) -> None:
    """While one goes through all of them, the others are served, too; each message comes once."""
    seen: list[list[str]] = [[], [], []]
    slowest = [0.0] * len(seen)
    ready = threading.Barrier(len(seen))

    def work(n: int) -> None:
        with psycopg.connect(database_url, autocommit=True) as db:
            acks: list[str] = []
            ready.wait()
            while sum(map(len, seen)) < LANES or acks:
                began = time.monotonic()
                got = db.execute(
                    "select ack_id, data from headgate.receive(%s, %s, 500, null, %s, %s)",
                    (S, C, acks or None, False if alone else None),
                ).fetchall()
                slowest[n] = max(slowest[n], time.monotonic() - began)
                seen[n] += [data for _, data in got]
                acks = [ack_id.rpartition(".")[0] for ack_id, _ in got]

    workers = [threading.Thread(target=work, args=(n,)) for n in range(len(seen))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(data for one in seen for data in one) == sorted(f"t{i}" for i in range(LANES))
    assert max(slowest) < 5, "finding them took 28 seconds once"
    assert min(map(len, seen)) > 0, "the others were served, too"


def test_locks_are_bounded(crowded: Db, database_url: str) -> None:
    """The memory for locks is one for all sessions: a transaction that meets many new lanes takes its part alone."""
    most = int(value(crowded, "show max_locks_per_transaction"))
    with psycopg.connect(database_url) as other:
        got = 0
        for _ in range(4):
            got += len(other.execute("select * from headgate.receive(%s, %s, 1000)", (S, C)).fetchall())
        held = value(crowded, "select count(*) from pg_locks where locktype = 'advisory'")
    assert 0 < held <= most
    assert got >= most, "it was served nevertheless"
