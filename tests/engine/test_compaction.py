"""Compaction: segments of which only parked messages are left are removed, and these are kept, each exactly once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import psycopg
import pytest

import headgate
from headgate.database import schema
from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    drain,
    facts,
    nack,
    pass_time,
    receive,
    send,
    send_batch,
    seqs,
    value,
)
from support.postgres import NewCluster
from support.storage import create, end_segment, exists, lost, maintain, segment
from support.waiting import wait_until


@pytest.fixture
def stream(db: Db) -> str:
    return create(db, retain="until_acked")


def park(db: Db, done: int = 10, parked: int = 2, consumers: tuple[str, ...] = ("c",), **named: object) -> int:
    """A closed segment that these consumers have read, with some messages nacked for an hour; its id."""
    for name in consumers:
        call(db, "create_consumer", "s", name, if_not_exists=True, **named)
    total = done + parked
    send_batch(db, "s", [f"m{i}" for i in range(total)], keys=[f"k{i}" for i in range(total)])
    for name in consumers:
        messages = sorted(receive(db, "s", name, 100), key=lambda m: m.seq)
        assert len(messages) == total
        nack(db, "s", name, messages[:parked], delay="1 hour", error="not now")
        ack(db, "s", name, messages[parked:])
    return int(end_segment(db)["id"])


def kept(db: Db) -> list[str]:
    id = value(db, "select id from headgate.stream where name = 's'")
    return column(db, f"select data from headgate.preserved_{id} order by seq")


def test_parked_messages_survive_their_segment(db: Db, stream: str, database_url: str) -> None:
    id = park(db, consumers=("c", "d"))
    before = db.execute("select * from headgate.peek('s', 'c', states => array['parked'])").fetchall()
    maintain(db)
    assert exists(db, id), "parked messages hold it"
    with headgate.connect(database_url) as hg:
        assert hg.stream("s").compact() == 1
        assert hg.stream("s").compact() == 0
        assert [m.data for m in hg.stream("s").messages()] == ["m0", "m1"]
        assert {s.state for s in hg.insights.message("s", 1)} == {"parked"}
    assert not exists(db, id)
    assert kept(db) == ["m0", "m1"], "once, though two consumers have them parked"
    assert db.execute("select * from headgate.peek('s', 'c', states => array['parked'])").fetchall() == before
    assert column(db, "select data from headgate.log_s order by seq") == ["m0", "m1"]
    assert facts(db, "s", "c")["floor"] == 0
    assert facts(db, "s", "c")["oldest_unacked"] is not None
    pass_time(db, "2 hours")
    got = receive(db, "s", "c")
    assert sorted((m.data, m.attempt) for m in got) == [("m0", 2), ("m1", 2)]
    maintain(db)
    nack(db, "s", "c", got[:1], delay="0")
    ack(db, "s", "c", got[1:])
    assert drain(db, "s", "c") == [got[0].data]
    maintain(db)
    assert kept(db) == ["m0", "m1"], "the other consumer needs them"
    assert drain(db, "s", "d") == ["m0", "m1"]
    maintain(db)
    assert kept(db) == []
    assert (lost(db, "c"), lost(db, "d")) == (0, 0)


def test_by_the_clock(db: Db, stream: str) -> None:
    id = park(db)
    assert "compact" not in maintain(db)
    call(db, "alter_stream", "s", compact_every="1 microsecond")
    assert maintain(db)["compact"] == 1
    assert not exists(db, id)


@pytest.mark.parametrize("rest", ["too many parked", "in flight", "unread", "unread by another", "not until_acked"])
def test_what_is_left_alone(db: Db, stream: str, rest: str) -> None:
    id = park(db, done=10, parked=3 if rest == "too many parked" else 2)
    if rest == "in flight":
        pass_time(db, "2 hours")
        assert receive(db, "s", "c", 1)
    elif rest == "unread":
        call(db, "seek", "s", "c", str(value(db, "select headgate.last_seq(id) from headgate.stream")))
        call(db, "seek", "s", "c", "10")
    elif rest == "unread by another":
        call(db, "create_consumer", "s", "d")
    elif rest == "not until_acked":
        call(db, "alter_stream", "s", retain="forever")
    assert call(db, "compact", "s") == 0
    assert exists(db, id)
    assert lost(db) == 0


def test_a_kept_message_holds_no_segment(db: Db, stream: str) -> None:
    park(db)
    assert call(db, "compact", "s") == 1
    send(db, "s", "next")
    second = end_segment(db)
    assert drain(db, "s", "c") == ["next"]
    maintain(db)
    assert not exists(db, second["id"])
    assert kept(db) == ["m0", "m1"]


def test_order_through_compaction(db: Db, stream: str) -> None:
    call(db, "create_consumer", "s", "c", order="key")
    send_batch(db, "s", ["1", *("x" * 20)], keys=["k", *(f"o{i}" for i in range(20))])
    got = receive(db, "s", "c", 100)
    nack(db, "s", "c", [m for m in got if m.key == "k"], delay="1 hour")
    ack(db, "s", "c", [m for m in got if m.key != "k"])
    end_segment(db)
    assert call(db, "compact", "s") == 1
    send(db, "s", "2", key="k")
    assert receive(db, "s", "c") == []
    pass_time(db, "2 hours")
    first = receive(db, "s", "c")
    assert datas(first) in (["1"], ["1", "2"])
    ack(db, "s", "c", first)
    wait_until(lambda: len(first) == 2 or drain(db, "s", "c") == ["2"])


def test_a_kept_message_becomes_a_dead_letter_and_comes_back(db: Db, stream: str) -> None:
    park(db, max_deliver=2)
    assert call(db, "compact", "s") == 1
    pass_time(db, "2 hours")
    nack(db, "s", "c", receive(db, "s", "c"), error="again")
    assert facts(db, "s", "c")["dead"] == 2
    maintain(db)
    assert kept(db) == []
    assert call(db, "redrive", "s", "c", max=1) == 1
    assert drain(db, "s", "c") == ["m0"]
    assert lost(db) == 0


@pytest.mark.parametrize(
    ("target", "again", "flying"),
    [("beginning", ["m0", "m1"], True), ("2", ["m1"], False), ("end", [], False), ("2000-01-01", ["m0", "m1"], False)],
)
def test_seek_brings_kept_messages_back(db: Db, stream: str, target: str, again: list[str], flying: bool) -> None:
    park(db)
    assert call(db, "compact", "s") == 1
    if flying:
        pass_time(db, "2 hours")
        assert len(receive(db, "s", "c")) == 2
    call(db, "seek", "s", "c", target)
    assert drain(db, "s", "c") == again


@pytest.mark.parametrize("end", ["ack", "dead"])
def test_a_kept_message_that_is_done_is_not_shown_as_available_after_a_seek(db: Db, stream: str, end: str) -> None:
    """No reader comes to it any more, wherever it is; and as a dead letter it can be redriven."""
    park(db, parked=1, max_deliver=2)
    call(db, "compact", "s")
    pass_time(db, "2 hours")
    got = receive(db, "s", "c")
    assert datas(got) == kept(db) == ["m0"]
    ack(db, "s", "c", got) if end == "ack" else nack(db, "s", "c", got)
    call(db, "seek", "s", "c", "beginning")
    assert kept(db) == ["m0"], "until maintenance comes by"
    done = "done" if end == "ack" else "dead"
    assert column(db, "select state from headgate.peek('s', 'c')") == [done]
    assert column(db, "select state from headgate.message_states('s', 1)") == [done]
    assert facts(db, "s", "c")["unread"] == 0
    if end == "dead":
        assert call(db, "redrive", "s", "c", all=True) == 1
        assert drain(db, "s", "c") == ["m0"]
    assert drain(db, "s", "c") == []


def test_retain_up_to_holds_for_kept_messages(db: Db, stream: str) -> None:
    call(db, "alter_stream", "s", retain_up_to="30 minutes")
    park(db)
    assert call(db, "compact", "s") == 1
    maintain(db)
    assert kept(db) == ["m0", "m1"]
    db.execute("update headgate.preserved_1 set created_at = created_at - interval '1 hour'")
    maintain(db)
    assert kept(db) == []
    assert (lost(db), facts(db, "s", "c")["parked"]) == (2, 0)


def test_a_fixed_snapshot_from_before(db: Db, stream: str, database_url: str) -> None:
    """In it the segment is empty and the copy does not exist: it must not take the message for lost."""
    park(db)
    pass_time(db, "2 hours")
    with psycopg.connect(database_url) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select 1 from headgate.stream")
        assert call(db, "compact", "s") == 1
        with pytest.raises(psycopg.errors.SerializationFailure):
            receive(old, "s", "c")
    assert drain(db, "s", "c") == ["m0", "m1"]
    assert lost(db) == 0


@pytest.mark.alone
def test_an_open_transaction_that_received_puts_it_off(db: Db, stream: str, database_url: str) -> None:
    id = park(db)
    with psycopg.connect(database_url) as slow:
        receive(slow, "s", "c")
        wait_until(lambda: value(db, "select headgate.held_open('headgate.message_1_1')"))
        began = time.monotonic()
        assert call(db, "compact", "s") == 0
        assert time.monotonic() - began < 1
        assert kept(db) == []
        assert segment(db, id)["state"] == "closed"
    assert call(db, "compact", "s") == 1


def test_under_traffic(db: Db, database_url: str) -> None:
    """Workers nack and ack, the same messages again and again, while everything is compacted as soon as possible."""
    create(db, retain="until_acked", compact_every="1 microsecond")
    call(db, "create_consumer", "s", "c")
    total = 3000
    done: dict[int, int] = {}
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(number: int) -> None:
        dice = random.Random(number)
        try:
            with psycopg.connect(database_url, autocommit=True) as mine:
                mine.execute("set lock_timeout = '5s'")
                while not stop.is_set():
                    for m in receive(mine, "s", "c", 20):
                        if dice.random() < 0.1:
                            nack(mine, "s", "c", [m], delay=f"{dice.randrange(300)} ms")
                        elif ack(mine, "s", "c", [m]) == (1, 0):
                            done[m.seq] = done.get(m.seq, 0) + 1
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=[n]) for n in range(2)]
    for worker in workers:
        worker.start()
    compacted = 0
    sent: list[int] = []
    try:
        while len(sent) < total:
            sent += send_batch(db, "s", ["x"] * 100)
            compacted += maintain(db).get("compact", 0)
        wait_until(lambda: maintain(db) and len(done) == total)
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
    assert not failures
    assert compacted > 0
    assert done == dict.fromkeys(sent, 1)
    assert lost(db) == 0


def test_killed_in_the_middle(new_cluster: NewCluster) -> None:
    """Before the copy, between copy and removal, and after the commit: each message is there exactly once."""
    own = new_cluster()
    with psycopg.connect(own.url(), autocommit=True) as admin:
        admin.execute("create database crash")
    with psycopg.connect(own.url("crash")) as setup:
        setup.execute(schema.install_sql())
    with psycopg.connect(own.url("crash"), autocommit=True) as db:
        create(db, retain="until_acked")
        id = park(db, done=80, parked=20)
        wanted = column(db, "select data from headgate.log_s order by seq")[:20]
    for moment in ("after the copy", "after the removal", "after the commit"):
        with suppress(psycopg.OperationalError), psycopg.connect(own.url("crash")) as db:
            g = f"(select g from headgate.segment g where g.id = {id})"
            if moment == "after the copy":
                assert value(db, f"select headgate.preserve_unfinished({g})") == 20
            else:
                assert call(db, "compact", "s") == 1
            if moment == "after the commit":
                db.commit()
            else:
                db.execute("select pg_switch_wal()")  # what it has written so far is on disk
            own.kill()
        own.start()
        with psycopg.connect(own.url("crash"), autocommit=True) as db:
            parked = column(db, "select data from headgate.log_s where seq <= 20 order by seq")
            assert parked == wanted
            assert exists(db, id) == (moment != "after the commit")
            assert len(kept(db)) == (20 if moment == "after the commit" else 0)
    with psycopg.connect(own.url("crash"), autocommit=True) as db:
        pass_time(db, "2 hours")
        got = receive(db, "s", "c", 100)
        assert sorted(seqs(got)) == list(range(1, 21))
        assert sorted(datas(got)) == sorted(wanted)
        ack(db, "s", "c", got)
        assert drain(db, "s", "c") == []
