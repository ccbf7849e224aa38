"""Segments: when they end and close, that they come and go without holding anybody up, and that space returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

import headgate
from support.calls import Db, ack, call, drain, facts, pass_time, receive, send, send_batch, tick, value
from support.storage import create, end_segment, exists, lost, maintain, segment
from support.waiting import wait_until


def turn(db: Db, stream: str = "s") -> dict[str, int]:
    tick(db, stream)
    return maintain(db)


class TestClosing:
    def test_by_rows(self, db: Db) -> None:
        create(db, segment_rows=1000, segment_age=None)
        send_batch(db, "s", ["x"] * 1500)
        assert turn(db)["close segments"] == 1
        first, second = segment(db, 1), segment(db, 2)
        assert (first["state"], first["messages"], second["state"]) == ("closed", 1000, "open")
        assert first["last_at"] <= first["closed_at"]
        assert first["bytes"] > 0

    def test_by_size(self, db: Db) -> None:
        create(db, segment_bytes=200_000, segment_age=None)
        send_batch(db, "s", ["x" * 1000] * 50)
        turn(db)
        assert "end segment" not in turn(db), "not large enough yet"
        send_batch(db, "s", ["x" * 1000] * 150)
        assert turn(db)["end segment"] == 10_000 - 200
        wait_until(lambda: "close segments" in turn(db))
        assert segment(db, 1)["messages"] == 200
        [seq] = send(db, "s", "next")
        assert seq == 10_001

    def test_by_age(self, db: Db) -> None:
        create(db, "given", segment_age="1 hour")
        create(db, "limited", segment_age=None, retain_up_to="8 hours")
        create(db, "acked", segment_age=None, retain="until_acked")
        create(db, "for_ever", segment_age=None)
        ended = []
        for id, stream in db.execute("select id, name from headgate.stream order by id").fetchall():
            assert "end segment" not in turn(db, stream), "an empty one does not grow old"
            send(db, stream, "x")
            for age in (50, 11):
                assert "end segment" not in turn(db, stream)
                db.execute(f"update headgate.message_{id} set created_at = created_at - interval '{age} minutes'")
            if "end segment" in turn(db, stream):
                ended.append(stream)
        assert ended == ["given", "limited", "acked"]

    def test_not_while_somebody_may_still_write_into_it(self, db: Db, database_url: str) -> None:
        """Neither while it is fresh, nor when ticks no longer wait for it."""
        create(db)
        call(db, "create_consumer", "s", "c")
        with psycopg.connect(database_url) as slow:
            send(slow, "s", "slow")
            send(db, "s", "fast")
            assert "end segment" in turn(db)
            for _ in range(3):
                pass_time(db, "2 seconds")
                assert "close segments" not in turn(db)
            assert segment(db, 1)["kept_by"] == "an open transaction may still write into it"
            slow.commit()
        wait_until(lambda: "close segments" in turn(db))
        assert segment(db, 1)["messages"] == 2
        assert drain(db, "s", "c") == ["fast", "slow"]

    def test_an_unrelated_long_transaction_does_not_keep_it_open(self, db: Db, database_url: str) -> None:
        create(db)
        with psycopg.connect(database_url) as other:
            other.execute("select pg_current_xact_id()")
            send(db, "s", "x")
            assert "end segment" in turn(db)
            pass_time(db, "2 seconds")
            wait_until(lambda: "close segments" in turn(db))

    def test_messages_of_rolled_back_transactions_alone(self, db: Db, database_url: str) -> None:
        create(db, segment_rows=1000, segment_age=None)
        with psycopg.connect(database_url) as other:
            send_batch(other, "s", ["no"] * 2000)
            other.rollback()
        send(db, "s", "yes")
        wait_until(lambda: not exists(db, 1) or not turn(db))
        assert (exists(db, 1), exists(db, 2)) == (False, False)
        call(db, "create_consumer", "s", "c")
        assert drain(db, "s", "c") == ["yes"]

    def test_what_is_left_out_is_not_counted(self, db: Db) -> None:
        """12,000 messages in segments of a million seqs."""
        create(db, segment_rows=1_000_000, lanes=4)
        call(db, "create_consumer", "s", "c")
        for _ in range(4):
            send_batch(db, "s", ["x"] * 3000)
            end_segment(db)
        assert value(db, "select last_seq from headgate.streams") == 4_000_000
        assert value(db, "select messages from headgate.streams") == 12_000
        pass_time(db, "10 seconds")
        send(db, "s", "x")
        pass_time(db, "10 seconds")
        unread = facts(db, "s", "c")
        assert (unread["exact"], 11_000 < unread["unread"] < 13_000) == (False, True)
        assert value(db, "select rate from headgate.streams") < 10_000


def test_segments_in_the_sdk(db: Db, database_url: str) -> None:
    create(db, retain_up_to="1 hour")
    send(db, "s", "x")
    end_segment(db)
    with headgate.connect(database_url) as hg:
        first, second = hg.stream("s").segments()[:2]
    assert (first.stream, first.id, first.state, first.messages, first.first_seq) == ("s", 1, "closed", 1, 1)
    assert first.end_seq == second.first_seq
    assert first.kept_by is not None
    assert first.kept_by.startswith("retained until")
    assert (second.state, second.messages, second.kept_by, second.closed_at) == ("open", None, None, None)


class Flow:
    """Sends and receives of others, while something else goes on: how long each call took."""

    def __init__(self, url: str, stream: str = "s", consumer: str = "flow") -> None:
        self.url, self.stream, self.consumer = url, stream, consumer
        self.sent: list[int] = []
        self.got: list[int] = []
        self.slowest = 0.0
        self.failures: list[BaseException] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=[step]) for step in (self.send, self.receive)]

    def __enter__(self) -> Flow:
        for thread in self.threads:
            thread.start()
        wait_until(lambda: self.got or self.failures)
        self.slowest = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.failures

    def run(self, step: Callable[[Db], None]) -> None:
        try:
            with psycopg.connect(self.url, autocommit=True) as db:
                while not self.stop.is_set():
                    began = time.monotonic()
                    step(db)
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    time.sleep(0.002)
        except BaseException as error:
            self.failures.append(error)

    def send(self, db: Db) -> None:
        self.sent += send_batch(db, self.stream, ["x"] * 20)

    def receive(self, db: Db) -> None:
        batch = receive(db, self.stream, self.consumer, 100)
        ack(db, self.stream, self.consumer, batch)
        self.got += [m.seq for m in batch]


@pytest.mark.alone
@pytest.mark.parametrize("holder", ["sender", "receiver", "nobody"])
def test_open_transactions_hold_nobody_up(db: Db, database_url: str, holder: str) -> None:
    """Segments end, close, are emptied and dropped under traffic, while somebody's transaction stays open."""
    create(db, retain="until_acked", segment_rows=5000)
    call(db, "create_consumer", "s", "flow")
    send(db, "s", "seen")
    end_segment(db)
    tasks: dict[str, int] = {}

    def work() -> bool:
        for task, n in maintain(db).items():
            tasks[task] = tasks.get(task, 0) + n
        return all(tasks.get(task, 0) >= n for task, n in wanted.items())

    with psycopg.connect(database_url) as slow, Flow(database_url) as flow:
        if holder == "sender":
            send(slow, "s", "slow")
        elif holder == "receiver":
            call(db, "create_consumer", "s", "other")
            receive(slow, "s", "other")
        # A sender keeps what it may have written into from closing, a receiver what it looked at from being emptied.
        wanted = {"end segment": 10_000}
        if holder == "sender":
            wanted |= {"remove segments": 1}
        elif holder == "nobody":
            wanted |= {"remove segments": 3, "drop segments": 1}
        wait_until(work, 20)
        seen = len(flow.got)
        wait_until(lambda: work() and len(flow.got) > seen + 500, 20)
        slowest = flow.slowest
        slow.rollback()
        if holder == "receiver":
            call(db, "drop_consumer", "s", "other")
        wanted = {"remove segments": 3, "drop segments": 3}
        wait_until(work, 20)
    assert slowest < 1, "somebody waited"
    got = drain(db, "s", "flow")
    assert len(set(flow.got)) == len(flow.got) == len(flow.sent) + 1 - len(got)
    assert lost(db, "flow") == 0


@pytest.mark.alone
def test_a_segment_of_a_million_messages_goes_in_an_instant(db: Db, database_url: str) -> None:
    """In under a second, though two consumers have not read it, and nobody waits; the space is the disk's again.

    (Where the machine is busy with other things, in twenty times what it takes to count them.)"""
    call(db, "create_stream", "s", lanes=4, segment_rows=1_000_000, retain_up_to="1 hour", segment_age="1 hour")
    for name in ("behind", "some", "flow"):
        call(db, "create_consumer", "s", name, filter=["a.*"] if name == "some" else None)
    db.execute(
        "insert into headgate.message_1 (xid, lane, key, data) select pg_current_xact_id(), i %% 4, "
        "case when i %% 2 = 0 then 'a.' || i end, 'some data' from generate_series(1, %s) i",
        [1_000_000],
    )
    tick(db, "s")
    call(db, "seek", "s", "flow", "end")
    wait_until(lambda: "close segments" in turn(db))
    assert segment(db, 1)["messages"] == 1_000_000
    before = value(db, "select pg_database_size(current_database())")
    db.execute("update headgate.segment set last_at = last_at - interval '2 hours' where id = 1")
    took: list[float] = []

    def remove() -> bool:  # not at once, when the server is just vacuuming it
        began = time.monotonic()
        done = maintain(db)
        took.append(time.monotonic() - began)
        return done.get("remove segments") == 1

    with Flow(database_url) as flow:
        began = time.monotonic()
        value(db, "select count(*) from headgate.message_1_1 where key ~ '^a'")
        count = time.monotonic() - began
        wait_until(remove)
        seen = len(flow.got)
        wait_until(lambda: len(flow.got) > seen + 100)
    assert max(took) < max(1, 20 * count)
    assert flow.slowest < 0.5
    assert before - value(db, "select pg_database_size(current_database())") > 100_000_000
    assert (lost(db, "behind"), lost(db, "some")) == (1_000_000, 500_000)
    wait_until(lambda: "drop segments" in maintain(db))
    assert len(drain(db, "s", "behind")) == len(flow.sent)
