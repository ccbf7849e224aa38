"""Rates are of a window that ends now, and first attempts are counted apart from others."""

from __future__ import annotations

from typing import Any

import pytest

from support.calls import Db, ack, call, nack, receive, send, send_batch, value

S = "orders"
LANES = {"hash": {"lanes": 1}, "key": {"lane_by": "key"}, "channel": {"lane_by": "channel"}}


def consumer(db: Db, column: str) -> Any:
    return value(db, f"select {column} from headgate.consumers")


def later(db: Db, seconds: float) -> None:
    """So much time goes by in which nothing happens: everything that there is gets older."""
    by = f"{seconds} seconds"
    db.execute(
        "update headgate.cursor set served_at = served_at - %(by)s::interval, "
        "rate_since = rate_since - %(by)s::interval, "
        "earlier_at = earlier_at - %(by)s::interval",
        {"by": by},
    )
    db.execute("update headgate.tick set at = at - %s::interval", [by])
    [(stream,)] = db.execute("select id from headgate.stream where dead_of is null").fetchall()
    db.execute(f"update headgate.message_{stream} set created_at = created_at - %s::interval", [by])


def sent(db: Db, how: str, n: int) -> None:
    for i in range(n):
        named = {"hash": {}, "key": {"key": f"k{i}"}, "channel": {"channel": f"t{i % 3}"}}[how]
        call(db, "send", S, str(i), **named)


@pytest.fixture(params=LANES)
def how(request: pytest.FixtureRequest, db: Db) -> str:
    call(db, "create_stream", S, **LANES[request.param])
    call(db, "create_consumer", S, "c")
    return str(request.param)


class TestConsumers:
    def test_a_consumer_that_stopped_has_no_rate(self, db: Db, how: str) -> None:
        for _ in range(3):
            sent(db, how, 20)
            ack(db, S, "c", receive(db, S, "c", 100))
        assert consumer(db, "rate") > 0
        later(db, 11)
        assert consumer(db, "rate") == 0

    def test_the_window_is_ten_to_twenty_seconds(self, db: Db, how: str) -> None:
        """Twenty messages a second, and then two: after half a minute nothing is left of the twenty."""
        for n, seconds in ((200, 10.5), (200, 10.5), (20, 10.5), (20, 10.5), (20, 5)):
            sent(db, how, n)
            ack(db, S, "c", receive(db, S, "c", 1000))
            later(db, seconds)
        assert 0.9 < consumer(db, "rate") < 3

    def test_the_marks_move_in_the_middle_of_a_long_span(self, db: Db) -> None:
        """A backlog is one span, however long it takes: the rate is that of its last seconds."""
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, "c")
        send_batch(db, S, ["x"] * 3000)
        for n in (1000, 1000, 10, 10, 10, 10):
            ack(db, S, "c", receive(db, S, "c", n))
            later(db, 6)
        assert 1 < consumer(db, "rate") < 4

    def test_other_attempts_are_counted_apart(self, db: Db, how: str) -> None:
        sent(db, how, 10)
        for _ in range(30):
            got = receive(db, S, "c", 100)
            assert len(got) == 10
            nack(db, S, "c", got, delay="0")
        assert (consumer(db, "delivered"), consumer(db, "redelivered")) == (10, 290)
        assert consumer(db, "most_failures") == 30
        later(db, 15)
        nack(db, S, "c", receive(db, S, "c", 100), delay="0")
        later(db, 11)
        nack(db, S, "c", receive(db, S, "c", 100), delay="0")
        assert consumer(db, "rate") == 0, "a poison loop is not progress"

    def test_a_delayed_message_is_handed_out_once(self, db: Db, how: str) -> None:
        named = {"hash": {}, "key": {"key": "k"}, "channel": {"channel": "t"}}[how]
        call(db, "send", S, "a", delay="0.05 s", **named)
        got: list[Any] = []
        while not got:
            got = receive(db, S, "c", 10)
        assert (consumer(db, "delivered"), consumer(db, "redelivered"), consumer(db, "most_failures")) == (1, 0, 0)

    def test_in_order(self, db: Db, how: str) -> None:
        call(db, "create_consumer", S, "ordered", order="key")
        send(db, S, "a", key="k") if how != "channel" else call(db, "send", S, "a", "k", channel="t")
        for _ in range(5):
            got = receive(db, S, "ordered", 10)
            assert len(got) == 1
            nack(db, S, "ordered", got, delay="0")
        found = "select delivered, redelivered, most_failures from headgate.consumers where name = 'ordered'"
        assert db.execute(found).fetchone() == (1, 4, 5)

    def test_what_is_in_flight_has_failed_too(self, db: Db, how: str) -> None:
        sent(db, how, 1)
        for _ in range(3):
            nack(db, S, "c", receive(db, S, "c", 1), delay="0")
        receive(db, S, "c", 1)
        assert (consumer(db, "parked"), consumer(db, "in_flight"), consumer(db, "most_failures")) == (0, 1, 3)


def test_counts_survive_other_lanes_and_forgotten_ones(db: Db) -> None:
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, "c")
    sent(db, "channel", 3)
    nack(db, S, "c", receive(db, S, "c", 10), delay="0")
    ack(db, S, "c", receive(db, S, "c", 10))
    later(db, 3600)
    db.execute("select headgate.maintain()")
    db.execute("select headgate.maintain()")
    assert value(db, "select count(*) from headgate.cursor where lane >= 0") == 0, "idle lanes are forgotten"
    assert (consumer(db, "delivered"), consumer(db, "redelivered"), consumer(db, "rate")) == (3, 3, 0)


class TestStreams:
    @pytest.fixture(autouse=True)
    def stream(self, db: Db) -> None:
        call(db, "create_stream", S, lanes=1)
        call(db, "create_consumer", S, "c")

    def rate(self, db: Db) -> float:
        return float(value(db, "select rate from headgate.streams where name = 'orders'"))

    def test_one_that_nobody_touched_for_a_minute(self, db: Db) -> None:
        """A burst behind the last tick, and no tick since: nobody receives and nobody maintains."""
        receive(db, S, "c")
        later(db, 30)
        send_batch(db, S, ["x"] * 770)
        assert 70 < self.rate(db) < 80, "in the last ten seconds"
        later(db, 11)
        assert self.rate(db) == 0
        later(db, 60)
        assert self.rate(db) == 0

    def test_what_was_sent_before_does_not_count(self, db: Db) -> None:
        for n in (5000, 3000, 100):
            send_batch(db, S, ["x"] * n)
            later(db, 9)
        assert 9 < self.rate(db) < 12 or 309 < self.rate(db) < 312

    def test_rolled_back(self, db: Db) -> None:
        send_batch(db, S, ["x"] * 10)
        later(db, 30)
        with db.transaction(force_rollback=True):
            send_batch(db, S, ["x"] * 1000)
        later(db, 11)
        assert self.rate(db) == 0

    def test_with_ticks(self, db: Db) -> None:
        for _ in range(4):
            send_batch(db, S, ["x"] * 50)
            ack(db, S, "c", receive(db, S, "c", 100))
            later(db, 5)
        assert 4 < self.rate(db) < 13
