"""Guards on receiving where lanes are named: what a call reads depends on its batch, not on the number of lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from engine.test_plans import BATCH, Call, assert_only_indexes, receive, scans
from headgate.database import statements
from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.plans import Explained

CHANNELS = 10_000  # with work, and as many idle ones
EACH = 3
CONSUMERS = {"plain": "null, 'none'", "capped": "null, 'none', max_concurrency => 5"}
# These serve lane by lane, which takes long where there are so many: they begin where the idle channels are done.
SLOWER = {"ordered": "null, 'key', start => 'end'", "filtered": "array['k.*'], 'none', start => 'end'"}
# Limits count what is in flight, order looks at the keys of that; filters read a little ahead in each lane.
PAGES = {"plain": 600, "capped": 700, "ordered": 800, "filtered": 2000}


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def url(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """10,000 channels with work, 10,000 idle ones, deliveries in flight, parked messages."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('s', lane_by => 'channel')")
        for table in ("cursor", "delivery", "parked", "wake"):
            db.execute(f"alter table headgate.{table} set (autovacuum_enabled = off)")
        for name, settings in CONSUMERS.items():
            db.execute(f"select headgate.create_consumer('s', '{name}', {settings})")
        send(db, "idle")
        for name in CONSUMERS:
            drain(db, name)
        for name, settings in SLOWER.items():
            db.execute(f"select headgate.create_consumer('s', '{name}', {settings})")
        for _ in range(EACH):
            send(db, "busy")
        if request.param == "with statistics":
            db.execute("vacuum analyze")
        tick(db)
        for name in PAGES:
            for _ in range(5):
                ids = [
                    row[0]
                    for row in db.execute("select ack_id from headgate.receive_1(%s, 40, null, null, false)", [name])
                ]
                db.execute("select headgate.nack('s', %s, %s, '1 hour')", (name, ids[:10]))
        db.execute("vacuum headgate.discovered")
        if request.param == "with statistics":
            db.execute("vacuum analyze")
        yield url


def send(db: psycopg.Connection, prefix: str) -> None:
    """One message to each channel of that prefix."""
    db.execute(
        "select headgate.send_batch('s', array(select 'data' from generate_series(1, %(n)s)), "
        "array(select 'k.' || i from generate_series(1, %(n)s) i), "
        "channels => array(select %(prefix)s || i from generate_series(1, %(n)s) i))",
        {"n": CHANNELS, "prefix": prefix},
    )


def tick(db: psycopg.Connection) -> None:
    time.sleep(0.002)
    db.execute("select headgate.tick('s')")


def drain(db: psycopg.Connection, consumer: str) -> None:
    tick(db)
    acks: list[str] = []
    while rows := db.execute(
        "select ack_id from headgate.receive('s', %s, 5000, acks => %s)", (consumer, acks)
    ).fetchall():
        acks = sorted({row[0].rpartition(".")[0] for row in rows})


@pytest.fixture
def explained(url: str) -> Iterator[Explained]:
    """A session that plans everything anew."""
    with psycopg.connect(url, autocommit=True) as db:
        yield Explained(db)


def again(explained: Explained, consumer: str, before: Call) -> Call:
    """A receive with the acks of the one before."""
    done = sorted({str(row[0]).rpartition(".")[0] for row in before[0]})
    return explained.run(statements.RECEIVE.format(1), consumer, BATCH, "worker", done)


def assert_small(call: Call, consumer: str) -> None:
    rows, found = call
    assert len(rows) == BATCH
    assert_only_indexes(found)
    assert found[-1].buffers <= PAGES[consumer], "\n".join(f"{s.buffers} {s.query[:80]}" for s in found)
    for statement in found:
        for table in ("cursor", "delivery", "parked", "wake"):
            read = sum(n.rows + n.removed for n in statement.on(table) if n.kind != "ModifyTable")
            assert read <= BATCH * 4 + 20, f"{read:g} rows of {table}: {statement.query}"
        for node in statement.nodes:
            if "Sort" in node.kind:
                assert node.rows <= BATCH * 4, str(node)


@pytest.mark.parametrize("consumer", PAGES)
def test_receive_reads_a_batch_not_all_channels(explained: Explained, consumer: str) -> None:
    assert_small(receive(explained, consumer), consumer)


@pytest.mark.parametrize("consumer", PAGES)
def test_acks_in_receive(explained: Explained, consumer: str) -> None:
    """Whole deliveries, one for each message of the batch before."""
    first = receive(explained, consumer)
    second = again(explained, consumer, first)
    third = again(explained, consumer, second)
    assert_small(third, consumer)
    assert {n.index for n in scans(third[1], "delivery") if n.kind == "Index Scan"} <= {
        "delivery_pkey",
        "delivery_deadline",
    }


def test_the_channels_are_taken_in_the_order_of_the_index(explained: Explained) -> None:
    _, found = receive(explained, "plain")
    claims = [s for s in found if "skip locked" in s.query and s.on("cursor")]
    assert claims
    assert {n.index for s in claims for n in s.on("cursor")} == {"cursor_ready"}


def test_keys_in_order_inside_channels_are_served_together(explained: Explained) -> None:
    """Not lane by lane, as long as nothing of theirs is parked or in flight."""
    rows, found = receive(explained, "ordered")
    assert len({m[0].split(".")[0] for m in rows}) > 1
    assert [s.query for s in found if "headgate.serve_lane_1(" in s.query] == []
    looks = [s for s in found if "d.keys from headgate.delivery" in s.query]
    assert len(looks) == 1
    assert {n.index for n in looks[0].on("delivery")} <= {"delivery_pkey"}


def test_the_log_is_read_by_lane_and_seq(explained: Explained) -> None:
    _, found = receive(explained, "plain")
    reads = scans(found, "message_1")
    assert reads
    assert [str(n) for n in reads if "_lane_seq_idx" not in str(n.index)] == []
    assert sum(n.rows + n.removed for n in reads) <= BATCH * 2


def test_looking_when_there_is_nothing_to_read(url: str, explained: Explained) -> None:
    """A consumer that is up to date does not look at its idle channels."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_consumer('s', 'idle')")
        try:
            drain(db, "idle")
            states = "select state, count(*) from headgate.channels where consumer = 'idle' group by state"
            assert db.execute(states).fetchall() == [("idle", CHANNELS * 2)]
            db.execute("vacuum headgate.cursor, headgate.delivery")
            rows, found = receive(explained, "idle")
        finally:
            db.execute("select headgate.drop_consumer('s', 'idle')")
    assert rows == []
    assert_only_indexes(found)
    assert found[-1].buffers <= 150, "\n".join(f"{s.buffers} {s.query[:80]}" for s in found)


def test_keys_in_order(url: str) -> None:
    """A lane of one key has one delivery in flight: those of other lanes are not looked at to find that out."""
    query = statements.RECEIVE.format(2)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('k', lane_by => 'key')")
        try:
            db.execute("select headgate.create_consumer('k', 'c', null, 'key')")
            for _ in range(EACH):
                db.execute(
                    "select headgate.send_batch('k', array(select 'data' from generate_series(1, %(n)s)), "
                    "array(select 'k' || i from generate_series(1, %(n)s) i))",
                    {"n": CHANNELS},
                )
            time.sleep(0.002)
            db.execute("select headgate.tick('k')")
            for _ in range(20):
                db.execute(query, ("c", 40, "other", None))
            with psycopg.connect(url, autocommit=True) as session:
                explained = Explained(session)
                call = explained.run(query, "c", BATCH, "worker", None)
                for _ in range(2):
                    done = sorted({str(row[0]).rpartition(".")[0] for row in call[0]})
                    call = explained.run(query, "c", BATCH, "worker", done)
            assert_small(call, "capped")
        finally:
            db.execute("select headgate.drop_stream('k')")


def test_peek_does_not_compare_messages_with_all_lanes_that_were_discovered(db: psycopg.Connection) -> None:
    db.execute("select headgate.create_stream('many', lane_by => 'channel')")
    db.execute("select headgate.create_consumer('many', 'c')")
    db.execute(
        "select headgate.send_batch('many', array(select 'x' from generate_series(1, 3000)), "
        "channels => array(select 'c' || n from generate_series(1, 3000) n))"
    )
    db.execute("select headgate.receive('many', 'c', 100)")
    [(discovered,)] = db.execute("select count(*) from headgate.discovered").fetchall()
    assert discovered > 2000
    for states in (None, ["available"], ["done"]):
        rows, ran = Explained(db).run("select seq from headgate.peek('many', 'c', 10, states => %s)", states)
        assert len(rows) == (0 if states == ["done"] else 10)
        assert sum(node.removed for statement in ran for node in statement.nodes) < 20_000
