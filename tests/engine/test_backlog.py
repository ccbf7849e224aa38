"""What waits in each channel: headgate.channel_backlog, against what peek says of every message."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from headgate.postgres.cluster import Cluster
from support.databases import new_database
from support.engine import scalar
from support.plans import Explained
from support.waiting import wait_until

Db = psycopg.Connection[Any]


def make(db: Db, *, lane_by: str = "channel", stream: str = "", consumer: str = "") -> None:
    db.execute(f"select headgate.create_stream('s', lane_by => '{lane_by}'{stream})")
    db.execute(f"select headgate.create_consumer('s', 'c'{consumer})")


def send(db: Db, channels: list[str | None], keys: list[str] | None = None, delay: timedelta | None = None) -> None:
    db.execute(
        "select headgate.send_batch('s', %s::text[], keys => %s::text[], channels => %s::text[], delays => %s)",
        [["x"] * len(channels), keys, channels, None if delay is None else [delay] * len(channels)],
    )


def receive(db: Db, n: int) -> list[Any]:
    time.sleep(0.002)  # ticks are a millisecond apart
    return db.execute("select ack_id, channel, key, seq from headgate.receive('s', 'c', %s)", [n]).fetchall()


def backlog(db: Db, **arguments: Any) -> list[Any]:
    given = "".join(f", {name} => %({name})s" for name in arguments)
    with db.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(f"select * from headgate.channel_backlog('s', 'c'{given})", arguments).fetchall()


def waiting(rows: list[Any]) -> dict[str | None, int]:
    return {row.name: row.waiting for row in rows if row.waiting}


def peeked(db: Db, name: str = "l.channel") -> Counter[str | None]:
    """What waits, as peek and the log say it."""
    rows = db.execute(
        f"select {name} from headgate.peek('s', 'c', 1000000, states => array['available', 'parked']) p "
        "join headgate.log_s l using (seq)"
    )
    return Counter(row[0] for row in rows)


def pages(db: Db, size: int, **arguments: Any) -> Iterator[list[Any]]:
    after = None
    while page := backlog(db, max=size, after=after, **arguments):
        yield page
        after = page[-1].position


def test_before_the_first_receive(db: Db) -> None:
    make(db)
    assert backlog(db) == []
    send(db, ["a"] * 3 + ["b"] * 5 + [None] + ["c"])
    rows = backlog(db)
    assert [(r.name, r.waiting) for r in rows[:2]] == [("b", 5), ("a", 3)]
    assert waiting(rows) == {"a": 3, "b": 5, "c": 1, None: 1}
    assert all(r.exact and r.complete and r.in_flight == 0 and r.state == "ready" for r in rows)
    assert scalar(db, "select count(*) from headgate.cursor where lane >= 0") == 0, "nobody has received"
    first = scalar(db, "select created_at from headgate.log_s order by seq limit 1")
    assert {r.name: r.oldest for r in rows}["a"] == first


def test_through_the_life_of_messages(db: Db) -> None:
    """Unread, in flight, acked, nacked, delayed, discarded; and messages that come meanwhile."""
    make(db, consumer=", max_concurrency => 4")
    send(db, [f"t{n % 7}" for n in range(70)])
    send(db, ["t1", "later"], delay=timedelta(hours=1))
    assert waiting(backlog(db)) == peeked(db)
    got = receive(db, 20)
    assert got
    assert waiting(backlog(db)) == peeked(db)
    flying = Counter(row[1] for row in got)
    assert {r.name: r.in_flight for r in backlog(db) if r.in_flight} == flying
    db.execute("select headgate.ack('s', 'c', %s)", [[row[0] for row in got[:5]]])
    db.execute("select headgate.nack('s', 'c', %s, '1 hour')", [[row[0] for row in got[5:12]]])
    db.execute("select headgate.nack('s', 'c', %s, '0')", [[row[0] for row in got[12:15]]])
    send(db, ["t3"] * 11 + ["new"])
    assert waiting(backlog(db)) == peeked(db)
    for _ in range(40):
        db.execute("select headgate.ack('s', 'c', %s)", [[row[0] for row in receive(db, 10)]])
    assert waiting(backlog(db)) == peeked(db)
    rows = {r.name: r for r in backlog(db)}
    assert sum(r.delayed for r in rows.values()) == 9
    assert rows["later"].parked == rows["later"].delayed == 1
    assert all(r.exact and r.complete for r in rows.values())
    assert rows["new"].waiting == 0, "a lane that something is known of is shown"


def test_oldest_is_the_oldest_that_waits(db: Db) -> None:
    make(db)
    for channel in ("a", "b", "a", "b", "c"):
        send(db, [channel])
    sent = [row[0] for row in db.execute("select created_at from headgate.log_s order by seq")]
    assert [(r.name, r.oldest) for r in backlog(db, sort="oldest")] == [
        ("a", sent[0]),
        ("b", sent[1]),
        ("c", sent[4]),
    ]
    by_seq = sorted(receive(db, 3), key=lambda row: row[3])
    assert [row[3] for row in by_seq] == [1, 2, 5]
    db.execute("select headgate.ack('s', 'c', %s)", [[by_seq[0][0], by_seq[2][0]]])
    assert [(r.name, r.oldest) for r in backlog(db, sort="oldest")] == [("a", sent[2]), ("b", sent[3]), ("c", None)]
    db.execute("select headgate.nack('s', 'c', %s, '1 hour')", [[by_seq[1][0]]])
    assert [(r.name, r.oldest) for r in backlog(db, sort="oldest")] == [("b", sent[1]), ("a", sent[2]), ("c", None)]


def test_filters(db: Db) -> None:
    make(db, consumer=", filter => array['yes.*']")
    send(db, ["a", "a", "b", "b", "c"], ["yes.1", "no.1", "yes.2", "yes.3", "no.2"])
    assert waiting(backlog(db)) == {"a": 1, "b": 2}
    assert backlog(db, channel="c") == []
    receive(db, 1)
    assert waiting(backlog(db)) == peeked(db)


def test_lanes_by_key(db: Db) -> None:
    make(db, lane_by="key")
    keys = ["a", "a", "b", "a", None, None]
    db.execute("select headgate.send_batch('s', array_fill('x'::text, array[6]), %s::text[])", [keys])
    assert waiting(backlog(db)) | {None: 2} == {"a": 3, "b": 1, None: 2}
    assert sum(r.waiting for r in backlog(db) if r.name is None) == 2, "keyless messages have lanes of their own"
    receive(db, 2)
    by_key = waiting(backlog(db))
    assert by_key == {key: n for key, n in peeked(db, "l.key").items() if key is not None} | {
        key: n for key, n in by_key.items() if key is None
    }


def test_lanes_that_were_only_discovered(db: Db) -> None:
    """A receive that may be part of a longer transaction leaves word of lanes, and none is awake then."""
    make(db)
    send(db, [f"t{n}" for n in range(30)])
    with db.transaction():
        db.execute("select 1")
        got = receive(db, 3)
    assert scalar(db, "select count(*) from headgate.discovered") or len(got) == 3
    left = 30 - len(got)
    assert sum(r.waiting for r in backlog(db)) == left
    assert sum(peeked(db).values()) == left
    db.execute("update headgate.cursor set next_at = null where lane >= 0")
    assert sum(peeked(db).values()) == left


def test_upserts_count_the_newest_version(db: Db) -> None:
    make(db, lane_by="key", stream=", one_message_per_key => true")
    for n in range(5):
        db.execute("select headgate.send('s', %s, 'a')", [str(n)])
    db.execute("select headgate.send('s', 'x', 'b')")
    assert waiting(backlog(db)) == {"a": 1, "b": 1}


def test_one_channel(db: Db) -> None:
    make(db)
    send(db, ["a"] * 6_000 + ["b"])
    send(db, ["a"] * 6_000)
    [b] = backlog(db, channel="b")
    assert (b.name, b.waiting, b.exact) == ("b", 1, True)
    [a] = backlog(db, channel="a")
    assert not a.exact
    assert 10_000 <= a.waiting < 20_000
    assert backlog(db, channel="nobody") == []
    db.execute("select headgate.set_channel('s', 'c', 'limited', 3)")
    [limited] = backlog(db, channel="limited")
    assert (limited.waiting, limited.state, limited.max_concurrency) == (0, "idle", 3)


@pytest.mark.parametrize("sort", ["waiting", "oldest", "name"])
@pytest.mark.parametrize("begun", [False, True])
def test_pages_show_each_channel_once(db: Db, sort: str, begun: bool) -> None:
    make(db)
    send(db, [f"t{n % 50}" for n in range(500)] + [f"t{n}" for n in range(20)] + [None] * 3)
    if begun:
        acks = [row[0] for row in receive(db, 60)]
        db.execute("select headgate.ack('s', 'c', %s)", [acks[:30]])
        db.execute("select headgate.nack('s', 'c', %s, '1 hour')", [acks[30:]])
        db.execute("select headgate.set_channel('s', 'c', 'limited', 3)")
        db.execute("select headgate.set_channel('s', 'c', 'also limited', 3)")
        send(db, [""])
        db.execute("update headgate.cursor set name = null where lane = headgate.named_lane('t7')")
    whole = backlog(db, sort=sort)
    assert len(whole) == (54 if begun else 51)
    assert len({r.name for r in whole}) == len(whole)
    shown = [row for page in pages(db, 7, sort=sort) for row in page]
    assert [r.name for r in shown] == [r.name for r in whole]
    if sort == "waiting":
        assert [r.waiting for r in whole] == sorted((r.waiting for r in whole), reverse=True)
    elif sort == "name":
        names = [r.name for r in whole if r.name not in (None, "t7")]
        assert [r.name for r in whole if r.name not in (None, "t7")] == sorted(names)
    else:
        times = [r.oldest for r in whole if r.oldest is not None]
        assert times == sorted(times)
        assert [r.oldest for r in whole[len(times) :]] == [None] * (len(whole) - len(times))


@pytest.fixture(scope="module", params=["nobody has received", "begun"])
def large(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """60,000 messages in 5,000 channels, and two that have more than the others."""
    with new_database(cluster) as url, psycopg.connect(url, autocommit=True) as db:
        make(db)
        for part in range(6):
            db.execute(
                "select headgate.send_batch('s', array_fill('x'::text, array[10000]), channels => array("
                "select case when n %% 10 = 0 then 'huge' when n %% 33 = 0 then 'big' "
                "else 't' || (n + %s * 3) %% 5000 end from generate_series(1, 10000) n))",
                [part],
            )
        if request.param == "begun":
            for _ in range(10):
                receive(db, 20)
            db.execute("vacuum analyze")  # and the other without statistics
        yield url


def test_a_sample_finds_the_largest(large: str) -> None:
    with psycopg.connect(large, autocommit=True) as db:
        rows = backlog(db, max=20)
        assert len(rows) == 20
        assert [r.name for r in rows[:2]] == ["huge", "big"]
        assert not any(r.complete for r in rows)
        unread = "(select * from headgate.log_s where seq not in (select seq from headgate.in_flight)) x"
        true = dict(db.execute(f"select channel, count(*) from {unread} group by 1").fetchall())
        for row in rows:
            if row.exact:
                assert row.waiting == true[row.name]
            else:
                assert true[row.name] / 2 < row.waiting < true[row.name] * 2
        assert sum(r.exact for r in rows) == 18
        assert [r.waiting for r in rows] == sorted((r.waiting for r in rows), reverse=True), "in a page, as counted"
        oldest = backlog(db, sort="oldest", max=20)
        heads = db.execute(f"select min(seq) from {unread} group by channel order by 1 limit 20").fetchall()
        times = db.execute("select created_at from headgate.log_s where seq = any(%s)", [[h[0] for h in heads]])
        assert [r.oldest for r in oldest] == sorted(t[0] for t in times)


def test_pages_of_a_sample(large: str) -> None:
    with psycopg.connect(large, autocommit=True) as db:
        for sort in ("waiting", "name"):
            names = [row.name for page in pages(db, 1000, sort=sort) for row in page]
            assert len(set(names)) == len(names)
            assert {"huge", "big"} <= set(names)
            assert len(names) > 2000


def test_the_count_of_a_consumer_is_near(large: str) -> None:
    with psycopg.connect(large, autocommit=True) as db:
        [(unread, exact)] = db.execute("select unread, exact from headgate.consumers").fetchall()
        assert not exact
        assert 45_000 < unread < 75_000


@pytest.mark.parametrize("call", ["channel_backlog('s', 'c')", "channel_backlog('s', 'c', 'oldest')", "consumers"])
def test_a_look_reads_a_part_of_the_log(large: str, call: str) -> None:
    with psycopg.connect(large, autocommit=True) as db:
        _, statements = Explained(db).run(f"select * from headgate.{call}")
        assert [str(n) for s in statements for n in s.on("message_1") if n.kind == "Seq Scan"] == []
        read = sum(n.rows + n.removed for s in statements for n in s.on("message_1"))
        assert read < 50_000, f"{read:g} rows"


FACTS = """
select c.name, (f.unread, f.exact, f.floor, f.oldest_unacked),
       (u.count, u.exact, headgate.floor_of(c), headgate.oldest_unacked(c))
  from headgate.consumer c cross join lateral headgate.consumer_facts(c) f
 cross join lateral headgate.unread_count(c) u
"""


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
def test_facts_of_consumers_are_those_asked_one_by_one(db: Db, lane_by: str) -> None:
    make(db, lane_by=lane_by, consumer=", filter => array['yes.*']")
    db.execute("select headgate.create_consumer('s', 'other')")

    def agree() -> None:
        for name, at_once, one_by_one in db.execute(FACTS):
            assert at_once == one_by_one, name

    agree()
    for n in range(4):
        keys = [f"{'yes' if i % 3 else 'no'}.{i}" for i in range(40)]
        db.execute("select headgate.send_batch('s', array_fill('x'::text, array[40]), %s::text[])", [keys])
        agree()
        got = [row[0] for row in receive(db, 15)]
        agree()
        db.execute("select headgate.ack('s', 'c', %s)", [got[:5]])
        db.execute("select headgate.nack('s', 'c', %s, '1 hour')", [got[5 : 7 + n]])
        agree()
    for _ in range(4):
        db.execute("select headgate.send_batch('s', array_fill('x'::text, array[4000]))")
    agree()
    assert db.execute("select unread, exact from headgate.consumers where name = 'other'").fetchone()[1] is False  # type: ignore[index]


def test_one_lane_far_behind_hides_nobody(db: Db) -> None:
    """A channel that is held back for long makes the part of the log long that is looked at."""
    make(db)
    db.execute("select headgate.set_channel('s', 'c', 'unpaid', 0)")
    send(db, ["unpaid"] * 5)
    for _ in range(3):
        send(db, [f"t{n % 100}" for n in range(10_000)])
        while got := receive(db, 5000):
            db.execute("select headgate.ack('s', 'c', %s)", [[row[0] for row in got]])
    send(db, ["fresh"] * 7 + ["other"])
    rows = backlog(db, max=5)
    assert [(r.name, r.waiting, r.exact, r.complete) for r in rows[:2]] == [
        ("fresh", 7, True, False),
        ("unpaid", 5, True, False),
    ]
    assert waiting(backlog(db)) == {"fresh": 7, "unpaid": 5, "other": 1}
    assert [r.name for r in backlog(db, sort="oldest", max=3)] == ["unpaid", "fresh", "other"]
    assert db.execute("select unread, exact from headgate.consumers").fetchone() == (13, True)


def test_input_that_makes_no_sense(db: Db) -> None:
    make(db)
    for wrong in ({"sort": "colour"}, {"sort": None}, {"max": -1}, {"max": None}, {"after": "x"}, {"after": "1:x"}):
        with pytest.raises(psycopg.Error) as raised:
            backlog(db, **wrong)
        assert raised.value.sqlstate == "HG010"
        assert raised.value.diag.message_hint
    assert backlog(db, max=0) == []
    db.execute("select headgate.create_stream('plain')")
    db.execute("select headgate.create_consumer('plain', 'c')")
    assert db.execute("select * from headgate.channel_backlog('plain', 'c')").fetchall() == [], "no lane has a name"


def test_monitors_may_look(db: Db) -> None:
    make(db)
    send(db, ["a"])
    db.execute("set role headgate_monitor")
    assert waiting(backlog(db)) == {"a": 1}
    db.execute("reset role")
    db.execute("set role headgate_producer")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        backlog(db)


def test_nobody_is_waited_for(db: Db, database_url: str) -> None:
    """Others receive in open transactions, and a stream is dropped while it is looked at."""
    make(db)
    send(db, [f"t{n}" for n in range(30)])
    with psycopg.connect(database_url) as other:
        assert other.execute("select count(*) from headgate.receive('s', 'c', 10)").fetchone() == (10,)
        db.execute("set lock_timeout = '1s'")
        assert len(backlog(db)) == 30
    stop = threading.Event()
    errors: set[str | None] = set()
    looked = Counter[str]()

    def look() -> None:
        with psycopg.connect(database_url, autocommit=True) as mine:
            while not stop.is_set():
                try:
                    backlog(mine)
                    looked["yes"] += 1
                except psycopg.Error as error:
                    errors.add(error.sqlstate)
                    looked["no"] += 1

    thread = threading.Thread(target=look)
    thread.start()
    wait_until(lambda: looked["yes"])
    db.execute("select headgate.drop_stream('s')")
    wait_until(lambda: looked["no"])
    stop.set()
    thread.join()
    assert errors == {"HG001"}
