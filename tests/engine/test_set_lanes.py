"""set_lanes: the number of hashed lanes changes; nothing is lost or handed out twice, and each key keeps its order."""

from __future__ import annotations

from collections import defaultdict

import psycopg
import pytest
from psycopg import errors

import headgate
from support.calls import (
    Db,
    Received,
    ack,
    call,
    column,
    datas,
    drain,
    facts,
    ids,
    nack,
    pass_time,
    receive,
    send,
    send_batch,
    tick,
    value,
)  # fmt: skip
from support.waiting import wait_until

S = "orders"
KEYS = [f"k{i}" for i in range(12)]


@pytest.fixture(autouse=True)
def orders(db: Db) -> None:
    call(db, "create_stream", S, lanes=4)
    call(db, "create_consumer", S, "ordered", order="key", max_deliver=5)
    call(db, "create_consumer", S, "plain")


def lanes_of(db: Db, consumer: str) -> list[int]:
    return column(
        db,
        "select lane from headgate.cursor k join headgate.consumer c on c.id = k.consumer where c.name = %s order by 1",
        consumer,
    )


def put(db: Db, first: int, count: int) -> None:
    """Numbered messages, the keys in turn."""
    numbers = range(first, first + count)
    send_batch(db, S, [str(n) for n in numbers], keys=[KEYS[n % len(KEYS)] for n in numbers])


def read(db: Db, consumer: str, n: int = 100) -> list[Received]:
    """Everything that is to be had, acked."""
    seen: list[Received] = []
    got: list[Received] = []
    while got := receive(db, S, consumer, n, acks=ids(got)):
        seen += got
    return seen


def assert_in_order(messages: list[Received], count: int) -> None:
    assert sorted(int(m.data) for m in messages) == list(range(count))
    of_key: dict[str | None, list[int]] = defaultdict(list)
    for m in messages:
        of_key[m.key].append(int(m.data))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


def tidy(db: Db) -> None:
    for _ in range(4):
        tick(db, S)
        db.execute("select * from headgate.maintain()")


def change(db: Db, n: int) -> None:
    """Repeats it, as its hint says, while the server itself has a transaction open (a vacuum, on a busy machine)."""

    def is_changed() -> bool:
        try:
            call(db, "set_lanes", S, n)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    wait_until(is_changed)


class TestChange:
    @pytest.mark.parametrize("n", [1, 3, 16])
    def test_new_messages_lie_in_the_new_lanes(self, db: Db, n: int) -> None:
        put(db, 0, 100)
        call(db, "set_lanes", S, n)
        put(db, 100, 400)
        lanes = column(db, f'select distinct lane from headgate."log_{S}" where seq > 100 order by 1')
        assert lanes == sorted(
            {4 + value(db, "select (hashtextextended(%s, 0) %% %s + %s) %% %s", k, n, n, n) for k in KEYS}
        )
        assert value(db, "select lanes from headgate.streams where name = %s", S) == n
        for consumer in ("ordered", "plain"):
            assert drain(db, S, consumer) == sorted(str(i) for i in range(500))
        tidy(db)
        for consumer in ("ordered", "plain"):
            assert lanes_of(db, consumer) == list(range(4, 4 + n))
            assert facts(db, S, consumer)["delivered"] == 500
            assert facts(db, S, consumer)["lag"] == 0

    def test_up_and_down_with_a_backlog_of_each_layout(self, db: Db) -> None:
        for i, n in enumerate([16, 3, 5]):
            put(db, i * 200, 200)
            change(db, n)
        put(db, 600, 200)
        assert facts(db, S, "ordered")["unread"] == 800
        assert_in_order(read(db, "ordered", 7), 800)
        assert drain(db, S, "plain") == sorted(str(i) for i in range(800))
        tidy(db)
        assert lanes_of(db, "ordered") == lanes_of(db, "plain") == list(range(23, 28))
        put(db, 800, 10)
        assert len(read(db, "ordered")) == 10

    def test_from_python(self, database_url: str) -> None:
        with headgate.connect(database_url) as hg:
            orders = hg.stream(S)
            orders.set_lanes(7)
            assert orders.info().lanes == 7
            with pytest.raises(headgate.errors.InvalidLanes):
                orders.set_lanes(0)

    def test_the_same_number_changes_nothing(self, db: Db) -> None:
        call(db, "set_lanes", S, 4)
        assert lanes_of(db, "plain") == [0, 1, 2, 3]

    @pytest.mark.parametrize("n", [0, -1, 1025, None])
    def test_impossible_numbers(self, db: Db, n: int | None) -> None:
        with pytest.raises(psycopg.Error) as caught:
            call(db, "set_lanes", S, n)
        assert caught.value.sqlstate == "HG007"

    @pytest.mark.parametrize("lane_by", ["key", "channel"])
    def test_only_hashed_lanes(self, db: Db, lane_by: str) -> None:
        call(db, "create_stream", "other", lane_by=lane_by)
        with pytest.raises(psycopg.Error) as caught:
            call(db, "set_lanes", "other", 3)
        assert caught.value.sqlstate == "HG010"

    def test_not_while_writers_from_before_the_last_change_are_open(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as writer:
            send(writer, S, "0", key="a")
            call(db, "set_lanes", S, 8)
            with pytest.raises(errors.LockNotAvailable, match="still open"):
                call(db, "set_lanes", S, 2)
            writer.commit()
        call(db, "set_lanes", S, 2)
        assert drain(db, S, "ordered") == ["0"]

    def test_a_consumer_that_is_being_created_gets_all_lanes(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as creator:
            call(creator, "create_consumer", S, "new", order="key")
            with pytest.raises(errors.LockNotAvailable):
                call(db, "set_lanes", S, 8)
            creator.commit()
        call(db, "set_lanes", S, 8)
        put(db, 0, 50)
        assert_in_order(read(db, "new"), 50)

    def test_ended_layouts_without_messages_are_forgotten(self, db: Db) -> None:
        put(db, 0, 10)
        call(db, "set_lanes", S, 8)
        for consumer in ("ordered", "plain"):
            drain(db, S, consumer)
        tidy(db)
        layouts = "select base, end_seq from headgate.layout where stream = 1 order by base"
        assert db.execute(layouts).fetchall() == [(0, 11), (4, None)]
        db.execute("update headgate.segment set first_seq = 11 where id = 1")  # as if the log began later
        tidy(db)
        assert db.execute(layouts).fetchall() == [(4, None)]


class TestOrder:
    def test_new_lanes_wait_for_what_is_in_flight(self, db: Db) -> None:
        put(db, 0, 12)
        held = receive(db, S, "ordered", 100)
        assert len(held) == 12
        call(db, "set_lanes", S, 16)
        put(db, 12, 12)
        assert receive(db, S, "ordered", 100) == []
        assert len(receive(db, S, "plain", 100)) == 24  # nobody waits here
        ack(db, S, "ordered", held[:-1])
        assert receive(db, S, "ordered", 100) == []
        ack(db, S, "ordered", held[-1:])
        assert len(receive(db, S, "ordered", 100)) == 12

    def test_parked_messages_go_along_and_hold_their_keys(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        send(db, S, "b1", key="b")
        got = {m.data: m for m in receive(db, S, "ordered")}
        nack(db, S, "ordered", [got["a1"]], "1 hour")
        ack(db, S, "ordered", [got["b1"]])
        send(db, S, "a2", key="a")
        assert receive(db, S, "ordered") == []
        for n in (16, 3):
            call(db, "set_lanes", S, n)
            send(db, S, f"a-{n}", key="a")
            send(db, S, f"b-{n}", key="b")
            assert datas(read(db, "ordered")) == [f"b-{n}"]
        tidy(db)
        assert lanes_of(db, "ordered") == [20, 21, 22]
        states = column(db, "select state from headgate.peek(%s, 'ordered', 100) where key = 'a'", S)
        assert states == ["parked"] * 4
        pass_time(db, "2 hours")
        assert [(m.data, m.attempt) for m in read(db, "ordered")] == [("a1", 2), ("a2", 1), ("a-16", 1), ("a-3", 1)]

    def test_parked_messages_of_a_plain_consumer_survive(self, db: Db) -> None:
        put(db, 0, 20)
        nack(db, S, "plain", receive(db, S, "plain", 100), "1 hour")
        call(db, "set_lanes", S, 2)
        tidy(db)
        assert lanes_of(db, "plain") == [4, 5]
        assert facts(db, S, "plain")["parked"] == 20
        pass_time(db, "2 hours")
        assert drain(db, S, "plain") == sorted(str(i) for i in range(20))

    def test_what_was_delayed_comes_when_it_is_due(self, db: Db) -> None:
        send(db, S, "a1", key="a", delay="1 hour")
        call(db, "set_lanes", S, 16)
        send(db, S, "a2", key="a")
        send(db, S, "b1", key="b")
        assert datas(read(db, "ordered")) == ["b1"]
        pass_time(db, "2 hours")
        assert datas(read(db, "ordered")) == ["a1", "a2"]

    def test_dead_letters_of_old_lanes_can_be_redriven(self, db: Db) -> None:
        send(db, S, "a1", key="a")
        for _ in range(5):
            nack(db, S, "ordered", receive(db, S, "ordered"), "0")
        call(db, "set_lanes", S, 7)
        tidy(db)
        assert lanes_of(db, "ordered") == list(range(4, 11))
        assert call(db, "redrive", S, "ordered", all=True) == 1
        send(db, S, "a2", key="a")
        assert datas(read(db, "ordered")) == ["a1", "a2"]

    def test_a_writer_that_stays_open_holds_nobody_up(self, db: Db, database_url: str) -> None:
        """It sends before and after the change; what others send meanwhile goes through at once."""
        put(db, 0, 5)
        with psycopg.connect(database_url) as writer:
            send(writer, S, "w1", key="w")
            call(db, "set_lanes", S, 16)
            for i in range(5, 15):
                put(db, i, 1)
                assert [m.data for m in read(db, "ordered")][-1:] == [str(i)]
            send(writer, S, "w2", key="w")
            send(db, S, "x", key="x")
            [x] = receive(db, S, "ordered")
            writer.commit()
        send(db, S, "w3", key="w")
        assert datas(read(db, "ordered")) == ["w1", "w2", "w3"]
        ack(db, S, "ordered", [x])
        tidy(db)
        assert lanes_of(db, "ordered") == list(range(4, 20))

    def test_a_late_message_of_an_old_lane_waits_for_its_key_in_flight(self, db: Db, database_url: str) -> None:
        with psycopg.connect(database_url) as writer:
            send(writer, S, "a1", key="a")
            call(db, "set_lanes", S, 16)
            send(db, S, "a2", key="a")
            got = receive(db, S, "ordered")
            assert datas(got) == ["a2"]
            writer.commit()
        assert receive(db, S, "ordered") == []
        ack(db, S, "ordered", got)
        assert datas(read(db, "ordered")) == ["a1"]

    def test_late_messages_alone_are_found(self, db: Db, database_url: str) -> None:
        """Nothing else comes after the change; and the transaction is one that ticks no longer wait for."""
        with psycopg.connect(database_url) as writer:
            send(writer, S, "a1", key="a")
            put(db, 0, 12)
            call(db, "set_lanes", S, 16)
            send(writer, S, "a2", key="a")
            assert len(read(db, "ordered")) == 12
            for _ in range(3):
                send(db, S, "b", key="b")
                pass_time(db, "2 seconds")
                assert datas(read(db, "ordered")) == ["b"]
            assert value(db, "select late_xids is not null from headgate.tick order by id desc limit 1")
            writer.commit()
        assert datas(read(db, "ordered")) == ["a1", "a2"]

    def test_a_fixed_snapshot_goes_on_in_the_old_lanes(self, db: Db, database_url: str) -> None:
        """It has no transaction id yet when the lanes change: nobody can know that it will write."""
        with psycopg.connect(database_url) as writer:
            writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            writer.execute("select count(*) from headgate.stream")
            call(db, "set_lanes", S, 16)
            send(db, S, "x", key="x")
            for consumer in ("ordered", "plain"):
                assert drain(db, S, consumer) == ["x"]
            tidy(db)
            send(writer, S, "a1", key="a")
            writer.commit()
        for consumer in ("ordered", "plain"):
            assert drain(db, S, consumer) == ["a1"]
        tidy(db)
        assert lanes_of(db, "ordered") == lanes_of(db, "plain") == list(range(4, 20))


class TestPositions:
    @pytest.mark.parametrize("done", [False, True], ids=["in between", "all read"])
    def test_back_to_the_beginning(self, db: Db, done: bool) -> None:
        put(db, 0, 100)
        change(db, 16)
        put(db, 100, 100)
        change(db, 3)
        put(db, 200, 100)
        if done:
            read(db, "ordered")
            drain(db, S, "plain")
            tidy(db)
        call(db, "seek", S, "ordered", "beginning")
        call(db, "seek", S, "plain", "beginning")
        assert facts(db, S, "ordered")["unread"] == 300
        assert_in_order(read(db, "ordered", 9), 300)
        assert len(drain(db, S, "plain")) == 300
        call(db, "create_consumer", S, "later", order="key")
        assert_in_order(read(db, "later"), 300)

    @pytest.mark.parametrize("seq", [51, 101, 151, 201, 251])
    def test_to_a_seq(self, db: Db, seq: int) -> None:
        put(db, 1, 100)
        change(db, 16)
        put(db, 101, 100)
        change(db, 3)
        put(db, 201, 100)
        read(db, "ordered")
        for consumer in ("ordered", "plain"):
            call(db, "seek", S, consumer, str(seq))
            assert sorted(int(d) for d in drain(db, S, consumer)) == list(range(seq, 301))

    def test_to_the_end(self, db: Db) -> None:
        put(db, 0, 100)
        change(db, 16)
        put(db, 100, 100)
        for consumer in ("ordered", "plain"):
            call(db, "seek", S, consumer, "end")
            assert drain(db, S, consumer) == []
        put(db, 200, 5)
        for consumer in ("ordered", "plain"):
            assert len(drain(db, S, consumer)) == 5
