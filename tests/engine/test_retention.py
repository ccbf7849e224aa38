"""Retention: what is removed, when, and what becomes of consumers that were not done with it."""

from __future__ import annotations

import psycopg
import pytest

import headgate
from support.calls import (
    Db,
    ack,
    call,
    column,
    datas,
    discard,
    drain,
    facts,
    nack,
    pass_time,
    receive,
    send,
    send_batch,
    tick,
    value,
)
from support.storage import create, end_segment, exists, lost, maintain, segment
from support.waiting import wait_until


def age(db: Db, by: str) -> None:
    """Everything that is stored becomes older."""
    db.execute("update headgate.segment set last_at = last_at - %s::interval", [by])
    for stream in column(db, "select id from headgate.stream"):
        for table in (f"message_{stream}", f"preserved_{stream}"):
            db.execute(f"update headgate.{table} set created_at = created_at - %s::interval", [by])  # type: ignore[arg-type]


class TestUntilAcked:
    @pytest.fixture(autouse=True)
    def stream(self, db: Db) -> None:
        create(db, retain="until_acked")

    def test_removed_once_everybody_has_acked_it(self, db: Db) -> None:
        for name in ("c", "d"):
            call(db, "create_consumer", "s", name)
        send(db, "s", "1", "2")
        first = end_segment(db)
        assert first["messages"] == 2
        assert drain(db, "s", "c") == ["1", "2"]
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "consumer d has not read it"
        messages = receive(db, "s", "d")
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "consumer d has 2 of its messages in flight"
        ack(db, "s", "d", [m for m in messages if m.data != "2"])
        nack(db, "s", "d", [m for m in messages if m.data == "2"], delay="1 hour")
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "consumer d has 1 of its messages parked"
        discard(db, "s", "d", all=True)
        assert segment(db, first["id"])["kept_by"] == "the next maintenance removes it"
        assert maintain(db)["remove segments"] == 1
        assert column(db, "select data from headgate.log_s") == []
        assert maintain(db)["drop segments"] == 1
        assert value(db, "select min(id) from headgate.segments") == first["id"] + 1
        send(db, "s", "3")
        assert drain(db, "s", "c") == drain(db, "s", "d") == ["3"]
        assert (lost(db, "c"), lost(db, "d")) == (0, 0)

    def test_a_held_segment_does_not_hold_later_ones(self, db: Db) -> None:
        call(db, "create_consumer", "s", "c")
        send(db, "s", "later", delay="1 hour")
        first = end_segment(db)
        send(db, "s", "now")
        second = end_segment(db)
        assert drain(db, "s", "c") == ["now"]
        maintain(db)
        assert (exists(db, first["id"]), exists(db, second["id"])) == (True, False)
        pass_time(db, "1 hour")
        assert drain(db, "s", "c") == ["later"]

    def test_kept_while_there_is_no_consumer(self, db: Db) -> None:
        send(db, "s", "x")
        first = end_segment(db)
        maintain(db)
        assert segment(db, first["id"])["kept_by"] == "the stream has no consumer yet"
        call(db, "create_consumer", "s", "c")
        assert drain(db, "s", "c") == ["x"]
        maintain(db)
        assert not exists(db, first["id"])

    def test_what_a_long_transaction_has_still_to_commit_is_not_removed(self, db: Db, database_url: str) -> None:
        """Its messages lie in the middle of what everybody has acked."""
        call(db, "create_consumer", "s", "c")
        with psycopg.connect(database_url) as slow:
            send(slow, "s", "slow")
            send(db, "s", "fast")
            for _ in range(3):
                assert drain(db, "s", "c") in (["fast"], [])
                maintain(db)
                pass_time(db, "2 seconds")  # it is late now
                tick(db, "s")
            assert value(db, "select count(*) from headgate.segments where state = 'closed'") == 0
            slow.commit()
        assert drain(db, "s", "c") == ["slow"]
        wait_until(lambda: "remove segments" in maintain(db))
        assert lost(db) == 0

    def test_dead_letters_can_be_redriven_afterwards(self, db: Db) -> None:
        call(db, "create_consumer", "s", "c", max_deliver=1, order="key")
        send(db, "s", "x", key="k", headers={"a": 1})
        nack(db, "s", "c", receive(db, "s", "c"), error="no")
        first = end_segment(db)
        maintain(db)
        assert not exists(db, first["id"])
        assert call(db, "redrive", "s", "c", all=True) == 1
        maintain(db)
        [again] = receive(db, "s", "c")
        assert (again.data, again.key, again.headers, again.attempt) == ("x", "k", {"a": 1}, 1)
        nack(db, "s", "c", [again])
        assert call(db, "redrive", "s", "c", all=True) == 1
        assert drain(db, "s", "c") == ["x"]
        assert maintain(db)["forget kept"] == 1
        assert column(db, "select state from headgate.peek('s', 'c')") == []


class TestRetainUpTo:
    @pytest.fixture(autouse=True)
    def stream(self, db: Db) -> None:
        create(db, retain_up_to="1 hour")

    def remove(self, db: Db, id: int) -> None:
        age(db, "2 hours")
        wait_until(lambda: not exists(db, id) or not maintain(db))
        assert not exists(db, id)

    def test_removed_when_old_whoever_has_read_it(self, db: Db) -> None:
        call(db, "create_consumer", "s", "done")
        call(db, "create_consumer", "s", "behind")
        call(db, "create_consumer", "s", "some", filter=["a.*"])
        send_batch(db, "s", ["1", "2", "3"], keys=["a.1", "b.1", "a.2"])
        assert drain(db, "s", "done") == ["1", "2", "3"]
        first = end_segment(db)
        maintain(db)
        assert segment(db, first["id"])["kept_by"].startswith("retained until 20")
        age(db, "2 hours")
        send(db, "s", "4", key="a.3")
        maintain(db)
        assert not exists(db, first["id"])
        assert [lost(db, name) for name in ("done", "behind", "some")] == [0, 3, 2]
        assert facts(db, "s", "behind")["floor"] >= first["end_seq"] - 1
        for name in ("done", "behind", "some"):
            assert facts(db, "s", name)["lag"] == 1
            assert drain(db, "s", name) == ["4"], "it goes on at the oldest message left"
        assert column(db, "select distinct reason from headgate.loss") == ["retain_up_to"]
        call(db, "seek", "s", "behind", "beginning")
        assert drain(db, "s", "behind") == ["4"]

    def test_half_read(self, db: Db) -> None:
        call(db, "create_consumer", "s", "c")
        send_batch(db, "s", [str(i) for i in range(100)])
        ack(db, "s", "c", receive(db, "s", "c", 30))
        first = end_segment(db)
        self.remove(db, first["id"])
        assert lost(db) == 70
        assert drain(db, "s", "c") == []

    @pytest.mark.parametrize("order", ["none", "key"])
    def test_parked_messages_are_lost_and_what_waits_behind_goes_on(self, db: Db, order: str) -> None:
        call(db, "create_consumer", "s", "c", order=order)
        send(db, "s", "1", key="k")
        nack(db, "s", "c", receive(db, "s", "c"), delay="1 hour")
        first = end_segment(db)
        send(db, "s", "2", key="k")
        if order == "key":
            assert receive(db, "s", "c") == []  # it waits behind the first
        db.execute("update headgate.segment set last_at = last_at - interval '2 hours' where id = %s", [first["id"]])
        wait_until(lambda: not exists(db, first["id"]) or not maintain(db))
        assert (lost(db), facts(db, "s", "c")["parked"]) == (1, 1 if order == "key" else 0)
        wait_until(lambda: drain(db, "s", "c") == ["2"])

    @pytest.mark.parametrize(
        ("fate", "order"),
        [("ack", "none"), ("nack", "none"), ("nack", "key"), ("expire", "key"), ("bury", "key"), ("release", "none")],
    )
    def test_in_flight(self, db: Db, fate: str, order: str) -> None:
        """A worker may still ack it. When it fails it cannot come again."""
        call(db, "create_consumer", "s", "c", order=order, max_deliver=1 if fate == "bury" else None)
        send(db, "s", "1", key="k")
        messages = receive(db, "s", "c")
        first = end_segment(db)
        self.remove(db, first["id"])
        send(db, "s", "2", key="k")
        assert lost(db) == 0
        if fate == "ack":
            assert ack(db, "s", "c", messages) == (1, 0)
        elif fate == "expire":
            pass_time(db, "1 minute")
        elif fate == "release":
            db.execute("select headgate.release('s', 'c', %s)", [[messages[0].ack_id]])
        else:
            assert nack(db, "s", "c", messages, delay="0") == (1, 0)
        wait_until(lambda: drain(db, "s", "c") == ["2"])
        assert lost(db) == (0 if fate == "ack" else 1)
        assert [facts(db, "s", "c")[name] for name in ("lag", "dead")] == [0, 0]

    def test_unread_by_a_consumer_that_is_created_later_is_not_lost(self, db: Db) -> None:
        send(db, "s", "1")
        first = end_segment(db)
        self.remove(db, first["id"])
        call(db, "create_consumer", "s", "c")
        send(db, "s", "2")
        assert drain(db, "s", "c") == ["2"]
        assert lost(db) == 0

    def test_also_what_is_not_acked(self, db: Db) -> None:
        create(db, "both", retain="until_acked", retain_up_to="1 hour")
        call(db, "create_consumer", "both", "c")
        send(db, "both", "1")
        first = end_segment(db, "both")
        maintain(db)
        assert exists(db, first["id"], "both")
        age(db, "2 hours")
        maintain(db)
        assert not exists(db, first["id"], "both")
        assert lost(db, "c", "both") == 1


class TestMaxStorage:
    FILL = ["x" * 1000] * 500  # about 750 kB

    def fill(self, db: Db, segments: int) -> list[int]:
        ids = []
        for _ in range(segments):
            send_batch(db, "s", self.FILL)
            ids.append(end_segment(db)["id"])
        return ids

    def bytes(self, db: Db) -> int:
        return int(value(db, "select headgate.stored_bytes((headgate.find_stream('s')).id)"))

    def test_the_oldest_go_first(self, db: Db) -> None:
        create(db, max_storage=2_000_000)
        call(db, "create_consumer", "s", "c")
        ids = self.fill(db, 2)
        maintain(db)
        assert [segment(db, id)["kept_by"] for id in ids] == ["max_storage is not reached"] * 2
        ids += self.fill(db, 3)
        assert self.bytes(db) > 2_000_000
        wait_until(lambda: not maintain(db).get("remove segments"))
        assert self.bytes(db) <= 2_000_000
        here = [exists(db, id) for id in ids]
        assert here == sorted(here), "the oldest"
        assert here.count(True) == 2
        assert lost(db) == 500 * here.count(False)
        assert len(drain(db, "s", "c")) == 500 * here.count(True)

    def test_two_at_once_do_not_remove_too_much(self, db: Db, database_url: str) -> None:
        create(db, max_storage=2_000_000)
        ids = self.fill(db, 3)
        with psycopg.connect(database_url) as other:
            assert value(other, "select headgate.remove_segments(s) from headgate.stream s") == 1
            assert "remove segments" not in maintain(db)
            other.commit()
        assert "remove segments" not in maintain(db)
        assert [exists(db, id) for id in ids] == [False, True, True]

    def test_large_segments_are_ended_in_time(self, db: Db) -> None:
        """Else there would be nothing to remove: by default a segment takes a gigabyte."""
        create(db, max_storage=2_000_000, segment_age=None)
        for _ in range(10):
            send_batch(db, "s", self.FILL)
            tick(db, "s")
            maintain(db)
        wait_until(lambda: self.bytes(db) <= 2_000_000 or not maintain(db))
        assert 1_000_000 < self.bytes(db) <= 2_000_000

    def test_send_fails_while_nothing_may_be_removed(self, db: Db, database_url: str) -> None:
        create(db, max_storage=1_100_000, retain_at_least="1 hour")
        ids = self.fill(db, 2)
        with pytest.raises(psycopg.Error) as caught, psycopg.connect(database_url) as other:
            send(other, "s", "more")
        assert caught.value.sqlstate == "HG013"
        with headgate.connect(database_url) as hg:
            stream = hg.stream("s")
            with pytest.raises(headgate.errors.StreamFull, match="raise max_storage"):
                stream.send("more")
            assert all(g.kept_by for g in stream.segments()), "the open one, too, says why it is there"
            maintain(db)
            assert stream.info().is_full
            assert stream.segments()[0].kept_by is not None
            assert "retained at least until" in stream.segments()[0].kept_by
            assert all(exists(db, id) for id in ids), "nothing was lost for it"
            stream.alter(max_storage=100_000_000)
            assert not stream.info().is_full, "at once, not after the next maintenance"
            stream.send("room")
            stream.alter(max_storage=1_100_000)
            with pytest.raises(headgate.errors.StreamFull):
                stream.send("full again")
            age(db, "2 hours")
            stream.send("the oldest may go now")
            maintain(db)
            maintain(db)
            assert not exists(db, ids[0])
            assert not stream.info().is_full
            assert stream.info().retain_at_least is not None

    def test_what_is_not_acked_is_never_removed_for_room(self, db: Db) -> None:
        create(db, max_storage=1_100_000, retain="until_acked")
        call(db, "create_consumer", "s", "c")
        self.fill(db, 2)
        maintain(db)
        with pytest.raises(psycopg.Error, match="is full") as caught:
            send(db, "s", "more")
        assert caught.value.sqlstate == "HG013"
        assert len(drain(db, "s", "c")) == 1000
        send(db, "s", "more")
        assert maintain(db)["remove segments"] == 2
        assert lost(db) == 0
        assert drain(db, "s", "c") == ["more"]


def test_kept_for_ever_by_default(db: Db) -> None:
    call(db, "create_stream", "s", lanes=2, segment_rows=1000)
    call(db, "create_consumer", "s", "c")
    send_batch(db, "s", ["x"] * 2500)
    assert len(drain(db, "s", "c")) == 2500
    age(db, "10 years")
    tick(db, "s")
    maintain(db)
    maintain(db)
    assert [
        (g["state"], g["messages"], g["kept_by"]) for g in (segment(db, id) for id in (1, 2, 3))
    ] == [("closed", 1000, "the stream keeps its messages for ever")] * 2 + [("open", None, None)]  # fmt: skip
    call(db, "seek", "s", "c", "beginning")
    assert len(drain(db, "s", "c")) == 2500
    assert datas(receive(db, "s", "c")) == []
