"""Guards on the hot queries: what they read does not depend on how much there is, with statistics or without."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from headgate.database import statements
from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.plans import Explained, Node, Statement

MESSAGES = 200_000
SEGMENT_ROWS = 25_000
BATCH = 10
CONSUMERS = {"plain": "null, 'none'", "ordered": "null, 'key'", "filtered": "array['k.*.even'], 'none'"}
TABLES = ("message_", "delivery", "cursor", "parked", "tick", "wake")  # those that grow with the traffic
EXCEPT = {("message_id", "Bitmap Heap Scan")}  # ids of a batch come together

Call = tuple[list[tuple[object, ...]], list[Statement]]


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def url(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A stream of 8 lanes with a backlog in 8 segments, and three consumers that have read the first few messages."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('s', lanes => 8, segment_rows => %s)", [SEGMENT_ROWS])
        for name, settings in CONSUMERS.items():
            db.execute(f"select headgate.create_consumer('s', '{name}', {settings})")
        for table in db.execute(
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'headgate.message_1'::regclass"
        ):
            db.execute(f"alter table {table[0]} set (autovacuum_enabled = off)")
        for _ in range(MESSAGES // 10_000):
            db.execute(
                "select headgate.send_batch('s', array(select 'data ' || n from generate_series(1, 10000) n), "
                "array(select 'k.' || n % 1000 || case when n % 2 = 0 then '.even' else '.odd' end "
                "from generate_series(1, 10000) n))"
            )
        if request.param == "with statistics":
            db.execute("vacuum analyze")
        time.sleep(0.002)
        db.execute("select headgate.tick('s')")
        for name in CONSUMERS:  # deliveries in flight, parked messages, notes: what a consumer at work has
            for _ in range(20):
                ids = [row[0] for row in db.execute("select ack_id from headgate.receive('s', %s, 20)", [name])]
                db.execute("select headgate.nack('s', %s, %s, '1 hour')", (name, ids[:5]))
        if request.param == "with statistics":
            db.execute("vacuum analyze")
        yield url


@pytest.fixture
def explained(url: str) -> Iterator[Explained]:
    """A session that plans everything anew."""
    with psycopg.connect(url, autocommit=True) as db:
        yield Explained(db)


def receive(explained: Explained, consumer: str, n: int = BATCH) -> Call:
    """As the SDK does it. The first call of a session reads the catalogs: it is not what is looked at."""
    query = statements.RECEIVE.format(1)
    params = (consumer, n, "worker", None)
    explained.run(query, *params)
    return explained.run(query, *params)


def scans(found: list[Statement], *tables: str) -> list[Node]:
    return [n for s in found for t in tables for n in s.on(t) if n.kind != "ModifyTable"]


def assert_only_indexes(found: list[Statement]) -> None:
    """No seq scans, also when the table is small now: a session keeps its plans, and the table grows."""
    fine = {"Index Scan", "Index Only Scan", "Tid Scan"}  # by ctid: rows of parked that the statement before has found
    wrong = [str(n) for n in scans(found, *TABLES) if n.kind not in fine and (n.relation, n.kind) not in EXCEPT]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_receive_reads_the_log_by_lane_and_seq(explained: Explained, consumer: str) -> None:
    rows, found = receive(explained, consumer)
    assert len(rows) == BATCH
    assert_only_indexes(found)
    reads = scans(found, "message_1")
    assert reads
    assert [str(n) for n in reads if "_lane_seq_idx" not in str(n.index)] == []
    for n in reads:
        assert "Index Cond" in n.raw
        assert "lane" in n.raw["Index Cond"]


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_receive_sorts_no_backlog(explained: Explained, consumer: str) -> None:
    """The lanes are sorted by their turn, a batch by its seqs; the index gives the log in order."""
    _, found = receive(explained, consumer)
    chunk = BATCH * 8 + 500 if consumer == "filtered" else BATCH + 20
    for statement in found:
        for node in statement.nodes:
            if "Sort" in node.kind:
                assert node.rows <= chunk, str(node)


@pytest.mark.parametrize(
    ("consumer", "rows", "pages"),
    # a filter reads a chunk ahead: 8 times the batch and 500
    [("plain", BATCH + 8, 100), ("ordered", BATCH + 20 + 8, 250), ("filtered", BATCH * 8 + 500 + 8, 800)],
)
def test_receive_reads_a_batch_not_the_backlog(explained: Explained, consumer: str, rows: int, pages: int) -> None:
    """Rows: the batch, and of each segment of the span at most one more. Pages: of all statements together."""
    _, found = receive(explained, consumer)
    read = max(sum(n.rows + n.removed for n in s.on("message_1") if n.kind != "ModifyTable") for s in found)
    assert read <= rows
    assert found[-1].buffers <= pages, {s.query[:60]: s.buffers for s in found}


def test_receive_prunes_segments(explained: Explained) -> None:
    """Of the segments behind the cursor, and of those that are still empty, none is touched."""
    explained.db.execute("select headgate.create_consumer('s', 'late', start => %s)", [str(6 * SEGMENT_ROWS + 100)])
    try:
        rows, found = receive(explained, "late")
    finally:
        explained.db.execute("select headgate.drop_consumer('s', 'late')")
    assert len(rows) == BATCH
    log = max(found, key=lambda s: sum(n.rows for n in s.on("message_1")))
    assert {n.relation for n in log.on("message_1_")} <= {"message_1_7", "message_1_8"}


def test_receive_opens_few_segments(explained: Explained) -> None:
    """However many segments a span goes over, a batch is in the first ones."""
    _, found = receive(explained, "plain")
    log = max(found, key=lambda s: sum(n.rows for n in s.on("message_1")))
    assert len({n.relation for n in log.on("message_1_")}) <= 2


def test_picking_a_lane_when_there_is_nothing_to_read(explained: Explained) -> None:
    """A consumer that is up to date looks at the end of each lane only."""
    explained.db.execute("select headgate.create_consumer('s', 'idle', start => 'end')")
    try:
        rows, found = receive(explained, "idle")
    finally:
        explained.db.execute("select headgate.drop_consumer('s', 'idle')")
    assert rows == []
    assert_only_indexes(found)
    assert found[-1].buffers <= 150


def test_a_few_fresh_messages_of_several_lanes(explained: Explained) -> None:
    """Their lanes are claimed together, and each is read once; what lies elsewhere is not looked at."""
    explained.db.execute("select headgate.create_consumer('s', 'idle', start => 'end')")
    try:
        receive(explained, "idle")
        for _ in range(2):  # (the first time the lanes have no marks yet)
            explained.db.execute("select headgate.send_batch('s', array['a', 'b', 'c'], array['k.1', 'k.2', 'k.3'])")
            rows, found = explained.run(statements.RECEIVE.format(1), "idle", BATCH, "worker", None)
            assert sorted(row[3] for row in rows) == ["a", "b", "c"]
    finally:
        explained.db.execute("select headgate.drop_consumer('s', 'idle')")
    lanes = len({str(row[0]).split(".")[0] for row in rows})
    assert lanes > 1
    assert_only_indexes(found)
    assert sum("insert into headgate.delivery" in s.query for s in found) == lanes
    assert sum("set from_tick" in s.query for s in found) == 1, "their spans begin in one statement"
    assert found[-1].buffers <= 400


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("whole", [False, True], ids=["messages", "delivery"])
def test_ack_deletes_by_the_primary_key(explained: Explained, consumer: str, whole: bool) -> None:
    for _ in range(2):
        rows, _ = receive(explained, consumer)
        ids = [str(row[0]) for row in rows]
        if whole:
            ids = sorted({i.rpartition(".")[0] for i in ids})
        [(acked, stale)], found = explained.run("select * from headgate.ack('s', %s, %s)", consumer, ids)
        assert (acked, stale) == (BATCH, 0)
    assert_only_indexes(found)
    # (found there, then deleted by their place)
    assert {n.index for n in scans(found, "delivery") if n.kind != "Tid Scan"} == {"delivery_pkey"}
    assert scans(found, "message_1", "cursor") == []
    assert found[-1].buffers <= 150


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_acks_in_receive(explained: Explained, consumer: str) -> None:
    """Acks ride along with a receive: by the primary key too."""
    rows, _ = receive(explained, consumer)
    for _ in range(2):
        done = sorted({str(row[0]).rpartition(".")[0] for row in rows})
        rows, found = explained.run(statements.RECEIVE.format(1), consumer, BATCH, "worker", done)
        assert len(rows) == BATCH
    assert_only_indexes(found)


def test_nack_and_extend(explained: Explained) -> None:
    for _ in range(2):
        rows, _ = receive(explained, "ordered")
        ids = [str(row[0]) for row in rows]
        _, extended = explained.run("select * from headgate.extend('s', 'ordered', %s, '1 minute')", ids)
        _, nacked = explained.run("select * from headgate.nack('s', 'ordered', %s, '1 hour')", ids)
    for found in (extended, nacked):
        assert_only_indexes(found)
        assert scans(found, "message_1") == []


def test_retries_are_read_by_seq(explained: Explained) -> None:
    """Each with an index scan of its segment."""
    rows, _ = receive(explained, "plain")
    explained.run("select * from headgate.nack('s', 'plain', %s, '0')", [str(row[0]) for row in rows])
    for _ in range(50):  # until it is the turn of their lane again
        again, found = explained.run(statements.RECEIVE.format(1), "plain", BATCH, "worker", None)
        assert_only_indexes(found)
        if any(row[6] == 2 for row in again):
            break
    else:
        pytest.fail("the retries did not come")
    assert sum(n.rows + n.removed for s in found for n in s.on("message_1")) <= 100


@pytest.mark.parametrize("ids", [None, ["one", "two"]], ids=["without ids", "with ids"])
def test_send_reads_no_messages(explained: Explained, ids: list[str] | None) -> None:
    for number in range(2):
        fresh = None if ids is None else [f"{i} {number} {time.monotonic_ns()}" for i in ids]
        _, found = explained.run("select headgate.send_batch('s', array['a', 'b'], array['k', null], ids => %s)", fresh)
    assert scans(found, "message_1") == []
    assert_only_indexes(found)
    assert found[-1].buffers <= 150


def test_a_tick_reads_no_messages(explained: Explained) -> None:
    for _ in range(2):
        explained.run("select headgate.send('s', 'x')")
        time.sleep(0.002)
        _, found = explained.run("select headgate.tick('s')")
    assert scans(found, "message_1") == []
    assert found[-1].buffers <= 250


@pytest.mark.parametrize("settings", CONSUMERS.values(), ids=CONSUMERS.keys())
def test_the_end_of_a_span_is_not_sought_in_what_came_after_it(cluster: Cluster, settings: str) -> None:
    """A lane whose span holds less than the batch: what was sent since is not gone through."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("select headgate.create_stream('s', lanes => 1)")
        db.execute(f"select headgate.create_consumer('s', 'c', {settings})")
        explained = Explained(db)

        def send(n: int) -> None:
            texts = f"array(select 'k.' || n || '.even' from generate_series(1, {n}) n)"
            db.execute(f"select headgate.send_batch('s', {texts}, {texts})")

        def receive() -> Call:
            return explained.run(statements.RECEIVE.format(1), "c", BATCH, "worker", None)

        send(BATCH + 5)
        assert len(receive()[0]) == BATCH
        for _ in range(4):
            send(10_000)  # 200 pages of the index and more in all
        rows, found = receive()
        assert len(rows) in (5, BATCH), "what is left of the span, and perhaps a part of the next one"
        reads = scans(found, "message_1")
        assert max(n.raw["Shared Hit Blocks"] + n.raw["Shared Read Blocks"] for n in reads) < 60
