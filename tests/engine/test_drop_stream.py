"""Dropping a stream that others are using."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest

import headgate
from engine.test_many_segments import add_segments
from headgate.database import schema
from support.calls import Db, call, column, receive, send, value
from support.postgres import NewCluster
from support.servers import replica
from support.waiting import wait_until

GONE = {"HG001", "HG003", "42P01", "42883", "XX000"}  # the stream, or, at this moment, a part of it


@pytest.mark.parametrize("segments", [0, 120], ids=["at once", "in steps"])
def test_while_others_maintain_send_and_receive(db: Db, database_url: str, segments: int) -> None:
    """Neither the drop nor any of them ends in a deadlock."""
    over = threading.Event()

    def repeat(query: str) -> int:
        calls = 0
        with psycopg.connect(database_url, autocommit=True) as other:
            while not over.is_set():
                try:
                    other.execute(query)
                except psycopg.Error as error:
                    if error.sqlstate not in GONE:
                        raise
                calls += 1
                over.wait(0.02)
        return calls

    work = ["select * from headgate.maintain()"] * 2 + [
        "select headgate.send('s', 'x')", "select * from headgate.receive('s', 'c', 5)",
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(repeat, query) for query in work]
        try:
            for _ in range(3 if segments else 12):
                stream = call(db, "create_stream", "s", lanes=2)
                call(db, "create_consumer", "s", "c")
                add_segments(db, stream, segments)
                send(db, "s", "a")
                call(db, "drop_stream", "s")
        finally:
            over.set()
        assert all(other.result() > 0 for other in others)
    assert column(db, "select name from headgate.stream") == []
    left = "select count(*) from pg_class where relname ~ '^(message|dropped)_[0-9_]+$' and relkind in ('r', 'p')"
    wait_until(lambda: db.execute("select * from headgate.maintain()") and value(db, left) == 0)


def remade(db: Db, over: threading.Event, times: int = 15) -> None:
    """Drops the stream and makes it again, while others use it."""
    try:
        for _ in range(times):
            call(db, "drop_stream", "s")
            over.wait(0.02)
            call(db, "create_stream", "s", lanes=2)
            call(db, "create_consumer", "s", "c")
            over.wait(0.02)
    finally:
        over.set()


def test_the_sdk_goes_on(db: Db, database_url: str) -> None:
    """Senders and receivers are told that it is not there, or go on when it is there again; never anything else."""
    over = threading.Event()
    call(db, "create_stream", "s", lanes=2)
    call(db, "create_consumer", "s", "c")

    def repeat(hg: headgate.Headgate, what: Callable[[], object]) -> tuple[int, int]:
        done = missing = 0
        while not over.is_set():
            try:
                what()
                done += 1
            except (headgate.errors.StreamNotFound, headgate.errors.ConsumerNotFound):
                missing += 1
        return done, missing

    with headgate.connect(database_url) as hg, ThreadPoolExecutor(4) as pool:
        stream = hg.stream("s")
        consumer = stream.consumer("c")
        work: list[Callable[[], object]] = [
            lambda: stream.send("a", key="k"),
            lambda: stream.send_batch(["a", "b"]),
            lambda: consumer.ack(consumer.receive(5)),
            lambda: stream.info(),
        ]
        others = [pool.submit(repeat, hg, w) for w in work]
        try:
            remade(db, over)
        finally:
            over.set()
        for done, missing in (other.result() for other in others):
            assert done > 0
            assert missing >= 0
        seq = stream.send("last")
        messages = [m for _ in range(200) for m in consumer.receive(100)]
        assert seq in [m.seq for m in messages]


def test_a_users_transaction_is_told(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s")
    with headgate.connect(database_url) as hg, psycopg.connect(database_url) as tx:
        stream = hg.stream("s")
        tx.execute("set transaction isolation level repeatable read")
        tx.execute("select 1")  # a snapshot in which the stream is there
        call(db, "drop_stream", "s")
        with pytest.raises(headgate.errors.StreamNotFound):
            stream.send("a", conn=tx)
        tx.rollback()
        call(db, "create_stream", "s")
        tx.execute("set transaction isolation level repeatable read")
        tx.execute("select 1")
        call(db, "drop_stream", "s")
        call(db, "create_stream", "s")
        with pytest.raises(headgate.errors.Conflict, match="made again"):
            stream.send("a", conn=tx)


def test_the_server_answers_404(db: Db, database_url: str, tmp_path: Path) -> None:
    over = threading.Event()
    call(db, "create_stream", "s", lanes=2)
    call(db, "create_consumer", "s", "c")

    def repeat(http: httpx.Client, method: str, path: str, body: object) -> Counter[int]:
        found: Counter[int] = Counter()
        while not over.is_set():
            found[http.request(method, path, json=body).status_code] += 1
        return found

    with replica(database_url, tmp_path) as server, server.client() as http, ThreadPoolExecutor(4) as pool:
        calls = [
            ("POST", "/api/streams/s/messages", {"messages": [{"data": 1}]}),
            ("POST", "/api/streams/s/messages", {"messages": [{"data": 1, "id": "a"}]}),
            ("POST", "/api/streams/s/consumers/c/receive?batch_size=5", {}),
            ("GET", "/api/streams/s/consumers/c", None),
        ]
        others = [pool.submit(repeat, http, *c) for c in calls]
        try:
            remade(db, over)
        finally:
            over.set()
        for other in others:
            assert set(other.result()) <= {200, 404}, other.result()


def test_an_open_transaction_is_waited_for(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s")
    with psycopg.connect(database_url) as writer, psycopg.connect(database_url, autocommit=True) as other:
        send(writer, "s", "x")
        dropping = threading.Thread(target=lambda: call(other, "drop_stream", "s"))
        dropping.start()
        wait_until(lambda: value(db, "select count(*) from pg_locks where not granted and locktype = 'relation'"))
        send(db, "s", "others go on meanwhile")
        writer.commit()
        dropping.join()
    with pytest.raises(psycopg.Error, match="does not exist"):
        send(db, "s", "x")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize(
    "query",
    [
        "select headgate.send('s', 'a')",
        "select headgate.send('s', 'a', id => 'i')",
        "select * from headgate.receive('s', 'c')",
    ],
    ids=["send", "send with an id", "receive"],
)
def test_who_waits_for_it_is_told(db: Db, database_url: str, query: str, isolation: str) -> None:
    call(db, "create_stream", "s")
    call(db, "create_consumer", "s", "c")
    send(db, "s", "x")
    raised: list[psycopg.Error] = []

    def ask(tx: Db) -> None:
        try:
            tx.execute(query)
        except psycopg.Error as error:
            raised.append(error)

    with psycopg.connect(database_url) as dropper, psycopg.connect(database_url) as tx:
        tx.execute(f"set transaction isolation level {isolation}")
        tx.execute("select 1")
        call(dropper, "drop_stream", "s")
        asking = threading.Thread(target=ask, args=(tx,))
        asking.start()
        wait_until(lambda: value(db, "select count(*) from pg_locks where not granted and locktype = 'relation'"))
        dropper.commit()
        asking.join()
    assert [e.sqlstate for e in raised] == ["HG001"]


def test_an_autovacuum_gives_way(new_cluster: NewCluster) -> None:
    """It ends by itself only for who waits for its lock as long as deadlock_timeout says."""
    cluster = new_cluster()
    with psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute("alter system set autovacuum_naptime = '1s'")
        db.execute("select pg_reload_conf()")
        db.execute(schema.install_sql().encode())
        stream = call(db, "create_stream", "s")
        for _ in range(2):
            db.execute("select headgate.send_batch('s', array_fill(repeat('x', 500), array[10000]))")
        db.execute(f"""alter table headgate.message_{stream}_1 set (
            autovacuum_vacuum_insert_threshold = 1, autovacuum_vacuum_insert_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)""")  # one that takes minutes
        vacuumed = f"select count(*) from pg_stat_progress_vacuum where relid = 'headgate.message_{stream}_1'::regclass"
        wait_until(lambda: value(db, vacuumed))
        call(db, "drop_stream", "s")
        assert column(db, "select name from headgate.stream") == []


def test_lists_go_on_while_streams_are_dropped(db: Db, database_url: str) -> None:
    """A stream that goes while it is listed spoils neither list."""
    db.execute("select headgate.create_stream('stays')")
    db.execute("select headgate.create_consumer('stays', 'c')")
    gone = threading.Event()
    errors: list[BaseException] = []

    def drop_many() -> None:
        try:
            with psycopg.connect(database_url, autocommit=True) as mine:
                for n in range(15):
                    lane_by = ("hash", "channel")[n % 2]
                    mine.execute("select headgate.create_stream('goes', lane_by => %s)", [lane_by])
                    mine.execute("select headgate.create_consumer('goes', 'c', max_deliver => 1)")
                    mine.execute("select headgate.send('goes', 'x')")
                    mine.execute("select headgate.drop_stream('goes')")
        except BaseException as error:
            errors.append(error)
        finally:
            gone.set()

    thread = threading.Thread(target=drop_many)
    thread.start()
    looks = 0
    while not gone.is_set():
        assert "stays" in {row[0] for row in db.execute("select stream from headgate.consumers where lag >= 0")}
        assert "stays" in {row[0] for row in db.execute("select name from headgate.streams where messages >= 0")}
        looks += 1
    thread.join()
    assert not errors
    assert looks


CALLS = {
    "send": "select headgate.send('s', 'x', key => 'k')",
    "send with an id": "select headgate.send('s', 'x', key => 'k', id => '1')",
    "receive": "select * from headgate.receive('s', 'c', 5)",
    "receive with acks": "select * from headgate.receive('s', 'c', 5, acks => array[%(ack_id)s])",
    "ack": "select * from headgate.ack('s', 'c', array[%(ack_id)s])",
    "nack": "select * from headgate.nack('s', 'c', array[%(ack_id)s])",
    "release": "select * from headgate.release('s', 'c', array[%(ack_id)s])",
    "extend": "select * from headgate.extend('s', 'c', array[%(ack_id)s], '1 minute')",
}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("settings", [{}, {"lane_by": "key"}, {"one_message_per_key": True}], ids=str)
def test_a_fixed_snapshot_in_which_it_is_there(
    db: Db, database_url: str, settings: dict[str, object], isolation: str
) -> None:
    """Plain SQL is answered with an error that says what to do, whether the stream was made again or not."""
    answers: dict[tuple[str, bool], str | None] = {}
    for is_made_again in (False, True):
        for name, query in CALLS.items():
            call(db, "create_stream", "s", if_not_exists=True, **settings)
            call(db, "create_consumer", "s", "c", if_not_exists=True)
            send(db, "s", name, key="k")
            [message] = receive(db, "s", "c")
            with psycopg.connect(database_url) as tx:
                tx.execute(f"set transaction isolation level {isolation}")
                tx.execute("select 1")
                call(db, "drop_stream", "s")
                if is_made_again:
                    call(db, "create_stream", "s", **settings)
                    call(db, "create_consumer", "s", "c")
                with pytest.raises(psycopg.Error) as raised:
                    tx.execute(query, {"ack_id": message.ack_id})
            answers[name, is_made_again] = raised.value.sqlstate
    assert {answers[name, True] for name in CALLS} == {"40001"}
    assert {answers[name, False] for name in CALLS} <= {"HG001", "40001"}
    assert answers["send", False] == answers["receive", False] == "HG001"
