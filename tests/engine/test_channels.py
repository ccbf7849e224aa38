"""Lanes by channel: rotation, limits, due times, and that nothing is lost."""

from __future__ import annotations

import collections
import itertools

import psycopg
import pytest

from headgate import errors
from support.calls import Db, Received, call, column, receive, value
from support.waiting import wait_until

S, C = "jobs", "c"


@pytest.fixture
def jobs(db: Db) -> Db:
    call(db, "create_stream", S, lane_by="channel")
    call(db, "create_consumer", S, C)
    return db


def fill(db: Db, channel: str | None, n: int, **named: object) -> None:
    datas = [f"{channel}-{i}" for i in range(n)]
    call(db, "send_batch", S, datas, channels=[channel] * n, **named)


def drain(db: Db, consumer: str = C, batch: int = 10) -> list[Received]:
    """Everything there is, acked batch by batch."""
    found: list[Received] = []
    while got := receive(db, S, consumer, batch):
        found += got
        call(db, "ack", S, consumer, [m.ack_id for m in got])
    return found


class TestRotation:
    def test_a_batch_is_shared_between_channels(self, jobs: Db) -> None:
        for channel in "abc":
            fill(jobs, channel, 10)
        got = receive(jobs, S, C, 6)
        assert collections.Counter(m.channel for m in got) == {"a": 2, "b": 2, "c": 2}
        assert {m.data for m in got} == {f"{c}-{i}" for c in "abc" for i in (0, 1)}

    def test_each_round_gives_each_channel_its_turn(self, jobs: Db) -> None:
        fill(jobs, "big", 500)
        for i in range(20):
            fill(jobs, f"small{i}", 3)
        seen = [m.channel for _ in range(7) for m in receive(jobs, S, C, 9)]
        assert seen.count("big") == 3, "one of each round of 21"
        assert all(seen.count(f"small{i}") == 3 for i in range(20))

    def test_a_batch_is_full_when_there_is_work(self, jobs: Db) -> None:
        fill(jobs, "a", 100)
        fill(jobs, "b", 3)
        got = receive(jobs, S, C, 50)
        assert collections.Counter(m.channel for m in got) == {"a": 47, "b": 3}

    def test_everything_comes_once_and_in_order_of_its_channel(self, jobs: Db) -> None:
        for i in range(40):
            fill(jobs, f"c{i % 7}" if i % 9 else None, 11)
        found = drain(jobs, batch=13)
        assert len(found) == len({m.seq for m in found}) == 440
        for channel in {m.channel for m in found}:
            seqs = [m.seq for m in found if m.channel == channel]
            assert seqs == sorted(seqs)
        assert receive(jobs, S, C, 10) == []

    def test_an_idle_channel_wakes_up(self, jobs: Db) -> None:
        for i in range(5):
            fill(jobs, "a", 1)
            fill(jobs, f"x{i}", 1)
            assert sorted(m.channel or "" for m in drain(jobs)) == ["a", f"x{i}"]

    def test_idle_lanes_are_forgotten_and_come_back(self, jobs: Db) -> None:
        fill(jobs, "a", 3)
        assert len(drain(jobs)) == 3
        jobs.execute(
            "update headgate.cursor set served_at = served_at - interval '1 hour', "
            "rate_since = rate_since - interval '1 hour'"
        )
        assert ("forget idle lanes", C, 1) in jobs.execute("select * from headgate.maintain()").fetchall()
        assert value(jobs, "select count(*) from headgate.cursor where lane > 0") == 0
        assert value(jobs, "select delivered from headgate.consumers") == 3
        fill(jobs, "a", 2)
        assert [m.data for m in drain(jobs)] == ["a-0", "a-1"]

    def test_many_channels_share_what_is_behind_a_large_backlog(self, jobs: Db) -> None:
        for _ in range(12):
            fill(jobs, "big", 10_000)
        for i in range(5):
            fill(jobs, f"small{i}", 1)
        seen = {m.channel for m in receive(jobs, S, C, 10)} | {m.channel for m in receive(jobs, S, C, 10)}
        assert seen == {"big", *(f"small{i}" for i in range(5))}


class TestLimits:
    def test_never_more_in_flight_than_allowed(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "capped", max_concurrency=3)
        for channel in "ab":
            fill(jobs, channel, 10)
        got = receive(jobs, S, "capped", 100)
        assert collections.Counter(m.channel for m in got) == {"a": 3, "b": 3}
        assert receive(jobs, S, "capped", 100) == []
        call(jobs, "ack", S, "capped", [m.ack_id for m in got if m.channel == "a"][:2])
        assert [m.data for m in receive(jobs, S, "capped", 100)] == ["a-3", "a-4"]

    def test_room_comes_back_with_ack_nack_release_and_expiry(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "capped", max_concurrency=1, ack_wait="0.2 seconds")
        fill(jobs, "a", 10)
        (one,) = receive(jobs, S, "capped", 5)
        call(jobs, "nack", S, "capped", [one.ack_id], "1 hour")
        (two,) = receive(jobs, S, "capped", 5)
        assert two.data == "a-1"
        (three,) = receive(jobs, S, "capped", 5, acks=[two.delivery])
        assert three.data == "a-2"
        call(jobs, "release", S, "capped", [three.ack_id])
        (again,) = receive(jobs, S, "capped", 5)
        assert (again.data, again.attempt) == ("a-2", 1)
        back: list[Received] = []
        wait_until(lambda: back.extend(receive(jobs, S, "capped", 5)) or back)
        assert (back[0].data, back[0].attempt) == ("a-3", 1), "a-2 expired, and is due after it now"

    def test_a_channel_can_have_its_own(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "capped", max_concurrency=2)
        call(jobs, "set_channel", S, "capped", "vip", 5)
        call(jobs, "set_channel", S, "capped", "held", 0)
        for channel in ("vip", "held", "usual"):
            fill(jobs, channel, 9)
        assert collections.Counter(m.channel for m in receive(jobs, S, "capped", 100)) == {"vip": 5, "usual": 2}
        call(jobs, "set_channel", S, "capped", "held", 1)
        assert [m.data for m in receive(jobs, S, "capped", 100)] == ["held-0"]
        call(jobs, "alter_consumer", S, "capped", max_concurrency=4)
        assert collections.Counter(m.channel for m in receive(jobs, S, "capped", 100)) == {"usual": 2}
        assert (
            value(jobs, "select max_concurrency from headgate.channels where consumer = 'capped' and channel = 'vip'")
            == 5
        )

    def test_releases_are_spaced(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "slow", release_interval="60 milliseconds")
        for channel in "ab":
            fill(jobs, channel, 4)
        found: list[Received] = []
        wait_until(lambda: found.extend(receive(jobs, S, "slow", 10)) or len(found) == 8)
        for channel in "ab":
            at = column(
                jobs,
                "select d.delivered_at from headgate.delivery d join headgate.message_1 m on m.seq = d.seqs[1] "
                "where channel = %s and d.consumer = 2 order by 1",
                channel,
            )
            gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(at)]
            assert len(gaps) == 3, "one message a release"
            assert min(gaps) >= 0.06

    def test_max_ack_pending_holds_over_all_channels(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "few", max_ack_pending=4)
        for channel in "abc":
            fill(jobs, channel, 5)
        assert len(receive(jobs, S, "few", 10)) == 4
        assert receive(jobs, S, "few", 10) == []


class TestDueTimes:
    def test_in_a_channel_the_earlier_due_comes_first(self, jobs: Db) -> None:
        call(jobs, "send", S, "late", channel="a", delay="0.3 seconds")
        call(jobs, "send", S, "soon", channel="a", delay="0.1 seconds")
        call(jobs, "send", S, "now", channel="a")
        assert [m.data for m in receive(jobs, S, C, 10)] == ["now"]
        found: list[Received] = []
        wait_until(lambda: found.extend(receive(jobs, S, C, 10)) or len(found) == 2)
        assert [m.data for m in found] == ["soon", "late"]

    def test_also_when_all_are_due_by_the_time_they_are_read(self, jobs: Db) -> None:
        call(jobs, "send", S, "late", channel="a", delay="50 milliseconds")
        call(jobs, "send", S, "now", channel="a")
        wait_until(lambda: value(jobs, "select bool_and(coalesce(deliver_at, now()) <= now()) from headgate.message_1"))
        assert [m.data for m in receive(jobs, S, C, 1) + receive(jobs, S, C, 1)] == ["now", "late"]

    def test_a_sleeping_channel_wakes_for_an_earlier_message(self, jobs: Db) -> None:
        call(jobs, "send", S, "in an hour", channel="a", delay="1 hour")
        assert receive(jobs, S, C, 10) == []
        call(jobs, "send", S, "now", channel="a")
        assert [m.data for m in receive(jobs, S, C, 10)] == ["now"]
        assert value(jobs, "select state from headgate.channels") == "waiting"
        assert call(jobs, "retry_now", S, C, all=True) == 1
        assert [m.data for m in receive(jobs, S, C, 10)] == ["in an hour"]

    def test_what_failed_comes_again_and_blocks_nobody(self, jobs: Db) -> None:
        fill(jobs, "a", 3)
        first = receive(jobs, S, C, 1)[0]
        call(jobs, "nack", S, C, [first.ack_id], "1 second", "no")
        assert [m.data for m in receive(jobs, S, C, 10)] == ["a-1", "a-2"]
        found: list[Received] = []
        wait_until(lambda: found.extend(receive(jobs, S, C, 10)) or found)
        assert [(m.data, m.attempt) for m in found] == [("a-0", 2)]


class TestOrderAndFilters:
    def test_keys_in_order_inside_a_channel(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "ordered", order="key")
        for i in range(3):
            for key in "xy":
                call(jobs, "send", S, f"{key}{i}", key, channel="a")
        got = receive(jobs, S, "ordered", 2)
        assert [m.data for m in got] == ["x0", "y0"]
        call(jobs, "nack", S, "ordered", [got[0].ack_id], "1 hour")
        call(jobs, "ack", S, "ordered", [got[1].ack_id])
        found: list[Received] = []
        wait_until(lambda: found.extend(receive(jobs, S, "ordered", 1)) or found)
        assert [m.data for m in found] == ["y1"]

    def test_a_filter(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "some", filter=["keep.>"])
        for i in range(200):
            call(jobs, "send", S, str(i), "keep.x" if i % 50 == 0 else "drop.x", channel=f"c{i % 3}")
        assert sorted(int(m.data) for m in drain(jobs, "some")) == [0, 50, 100, 150]

    def test_dead_letters_and_redrive(self, jobs: Db) -> None:
        call(jobs, "create_consumer", S, "once", max_deliver=1)
        fill(jobs, "a", 2)
        got = receive(jobs, S, "once", 10)
        call(jobs, "nack", S, "once", [m.ack_id for m in got], error="no")
        assert value(jobs, "select dead from headgate.consumers where name = 'once'") == 2
        jobs.execute("delete from headgate.cursor where consumer = 2 and lane > 0")
        assert call(jobs, "redrive", S, "once", all=True) == 2
        assert [m.data for m in receive(jobs, S, "once", 10)] == ["a-0", "a-1"]


class TestPositionsAndInsights:
    def test_seek(self, jobs: Db) -> None:
        for channel in "ab":
            fill(jobs, channel, 5)
        assert len(drain(jobs)) == 10
        call(jobs, "seek", S, C, "7")
        assert [m.seq for m in drain(jobs)] == [7, 8, 9, 10]
        call(jobs, "seek", S, C, "beginning")
        receive(jobs, S, C, 3)
        call(jobs, "seek", S, C, "end")
        assert receive(jobs, S, C, 3) == []
        fill(jobs, "c", 1)
        assert [m.data for m in drain(jobs)] == ["c-0"]

    def test_lag_and_floor(self, jobs: Db) -> None:
        for channel in "ab":
            fill(jobs, channel, 5)

        def facts() -> tuple[int, int, int, int]:
            row = jobs.execute("select unread, in_flight, lag, floor from headgate.consumers").fetchone()
            assert row
            return row

        assert facts()[:3] == (10, 0, 10)
        got = receive(jobs, S, C, 4)
        assert facts() == (6, 4, 10, 0)
        assert value(jobs, "select oldest_unacked from headgate.consumers") is not None
        call(jobs, "ack", S, C, [m.ack_id for m in got])
        drain(jobs)
        assert facts() == (0, 0, 0, 10)
        states = jobs.execute("select state from headgate.message_states('jobs', 3)").fetchall()
        assert states == [("done",)]
        fill(jobs, "new", 1)
        assert jobs.execute("select state from headgate.message_states('jobs', 11)").fetchall() == [("available",)]
        assert facts()[0] == 1


class TestBadInput:
    def test_channels_where_there_are_none(self, db: Db) -> None:
        call(db, "create_stream", "plain")
        call(db, "create_consumer", "plain", "c")
        for function, arguments in {
            "send": ("plain", "x", None, None, "a"),
            "set_channel": ("plain", "c", "a", 1),
        }.items():
            with pytest.raises(psycopg.Error) as error:
                call(db, function, *arguments)
            assert isinstance(errors.from_database(error.value), errors.InvalidArgument)
        with pytest.raises(psycopg.Error, match="hashed lanes"):
            call(db, "create_consumer", "plain", "d", max_concurrency=1)

    def test_limits_that_make_no_sense(self, jobs: Db) -> None:
        for limits in ({"max_concurrency": -1}, {"release_interval": "-1 seconds"}, {"release_interval": "2 days"}):
            with pytest.raises(psycopg.Error, match="not possible"):
                call(jobs, "set_channel", S, C, "a", **limits)
        with pytest.raises(psycopg.Error, match="lane_by"):
            call(jobs, "create_stream", "x", lane_by="colour")
