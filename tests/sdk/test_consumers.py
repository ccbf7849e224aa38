"""The SDK: looking at streams and consumers, and changing them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import headgate
from support.clients import is_empty, take
from support.command_line import CommandLine
from support.waiting import wait_until


@pytest.fixture
def stream(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
def consumer(stream: headgate.Stream) -> headgate.Consumer:
    return stream.consumer("billing", create=True)


def test_insights(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("billing", create=True, filter="k.>", order="key", max_deliver=1, max_ack_pending=50,
                               backoff={"first": 1}, ack_wait=7)  # fmt: skip
    seqs = stream.send_batch(
        [("k.1", "done"), ("k.2", "dead"), ("k.3", "in flight"), ("k.4", "parked"), ("k.5", "new"), ("x", "-")]
    )
    by_data = {m.data: m for m in take(consumer, 5)}
    by_data["done"].ack()
    # a transaction that is open anywhere in the cluster as a tick is made holds the floor until the next tick
    wait_until(lambda: not consumer.receive(1) and consumer.info().floor == seqs[0])
    by_data["dead"].nack(error="broken")
    consumer.alter(max_deliver=2)
    by_data["parked"].nack(delay=60, error="later")
    by_data["new"].nack(delay=0)

    info = consumer.info()
    assert (info.stream, info.name, info.filter, info.order) == ("orders", "billing", ["k.>"], "key")
    assert (info.ack_wait, info.max_deliver, info.max_ack_pending) == (timedelta(seconds=7), 2, 50)
    assert (info.backoff, info.paused) == ({"first": 1}, False)
    assert (info.in_flight, info.parked, info.dead, info.unread, info.lag, info.exact) == (1, 2, 1, 0, 3, True)
    assert info.delivered == 5
    assert info.floor == seqs[2] - 1, "done, and dead, which is done too"
    assert info.oldest_unacked is not None
    assert info.oldest_delivery is not None

    facts = stream.info()
    assert (facts.name, facts.lanes, facts.messages, facts.exact, facts.last_seq) == ("orders", 4, 6, True, seqs[-1])
    assert (facts.consumers, facts.dead_of) == (1, None)
    assert facts.bytes > 0
    assert facts.oldest is not None
    assert facts.newest is not None
    assert facts.oldest <= facts.newest
    assert hg.streams() == ["orders", "orders.dead"]
    assert hg.insights.stream("orders.dead").dead_of == "orders"
    assert stream.consumers() == ["billing"]
    assert [c.name for c in hg.insights.consumers()] == ["billing"]
    assert hg.insights.consumer("orders", "billing").lag == info.lag

    states = {p.data: p.state for p in consumer.peek(100)}
    assert states == {"done": "done", "dead": "dead", "in flight": "delivered", "parked": "parked", "new": "parked"}
    assert [p.data for p in consumer.peek(2, newest_first=True)] == ["new", "parked"]
    assert [p.data for p in consumer.peek(states=["delivered"])] == ["in flight"]
    assert [p.data for p in consumer.peek(after=seqs[0], before=seqs[2])] == ["dead"]
    assert [m.data for m in stream.messages(2, newest_first=True)] == ["-", "new"]
    assert [m.data for m in stream.messages(filter="k.*", after=seqs[3])] == ["new"]
    [state] = hg.insights.message("orders", seqs[3])
    assert (state.consumer, state.state, state.last_error) == ("billing", "parked", "later")
    assert hg.insights.message("orders", seqs[5])[0].state == "skipped"
    assert hg.insights.message("orders", 999) == []
    assert consumer.info() == info or consumer.info().rate != info.rate, "looking changes nothing"


def test_dead_letters_and_redrive(stream: headgate.Stream) -> None:
    consumer = stream.consumer("billing", create=True, max_deliver=1)
    stream.send_batch([("a.1", {"n": 1}), ("a.2", b"\x01"), ("b.1", "three"), ("b.2", 4)])
    for message in take(consumer, 4):
        message.nack(error=f"broken {message.seq}")
    letters = consumer.dead_letters()
    assert {(d.key, str(d.data), d.source_seq, d.attempts, d.last_error) for d in letters} == {
        ("a.1", "{'n': 1}", 1, 1, "broken 1"),
        ("a.2", "b'\\x01'", 2, 1, "broken 2"),
        ("b.1", "three", 3, 1, "broken 3"),
        ("b.2", "4", 4, 1, "broken 4"),
    }
    assert [d.seq for d in consumer.dead_letters(2, after=letters[1].seq)] == [d.seq for d in letters[2:]]
    assert consumer.purge_dead(filter="b.2") == 1
    assert consumer.redrive(filter="b.>") == 1
    assert consumer.redrive(seqs=[d.seq for d in letters if d.source_seq == 1]) == 1
    assert [(m.data, m.attempt) for m in take(consumer, 2)] == [({"n": 1}, 1), ("three", 1)]
    assert [d.source_seq for d in consumer.dead_letters()] == [2]
    assert consumer.redrive(limit=10) == 1
    assert consumer.redrive(all=True) == 0
    for everything in (consumer.redrive, consumer.purge_dead):
        with pytest.raises(headgate.errors.InvalidArgument, match="which dead letters"):  # not all of them by accident
            everything()
    assert [m.data for m in take(consumer, 1)] == [b"\x01"]


def test_seek(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    seqs = stream.send_batch(["a", "b", "c"])
    messages = take(consumer, 3)
    consumer.ack(messages[:1])
    consumer.seek("beginning")
    assert not messages[1].ack(), "what was in flight is forgotten"
    assert [m.data for m in take(consumer, 3)] == ["a", "b", "c"]
    consumer.seek(seqs[1])
    assert [m.data for m in take(consumer, 2)] == ["b", "c"]
    consumer.seek(messages[0].created_at - timedelta(hours=1))
    assert [m.data for m in take(consumer, 3)] == ["a", "b", "c"]
    consumer.seek("end")
    assert is_empty(consumer)


def test_pause(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send_batch(["a", "b"])
    [message] = consumer.receive(wait=5)
    consumer.pause()
    assert consumer.info().paused
    assert is_empty(consumer)
    assert message.ack(), "what is in flight can still be acked"
    consumer.resume()
    assert len(consumer.receive(wait=5)) == 1


def test_parked_messages_are_discarded(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send_batch(["a", "b"])
    for message in take(consumer, 2):
        message.nack(delay=60)
    assert consumer.discard([1]) == headgate.types.Discarded(1, 0)
    assert consumer.retry_now([1, 2]) == 1
    assert [m.data for m in take(consumer, 1)] == ["b"]


def test_alter(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.alter(dedup_window=1, max_message_bytes=10, segment_rows=5000)
    assert stream.info().dedup_window == timedelta(seconds=1)
    with pytest.raises(headgate.errors.MessageTooLarge):
        stream.send("x" * 11)
    stream.alter(max_message_bytes=20)
    stream.send("x" * 11)
    assert stream.info().dedup_window == timedelta(seconds=1), "only what is given changes"
    consumer.alter(filter="a.>", ack_wait=90, max_deliver=3, max_ack_pending=7, backoff=5)
    info = consumer.info()
    assert (info.filter, info.ack_wait.seconds, info.max_deliver, info.max_ack_pending, info.backoff) == (
        ["a.>"],
        90,
        3,
        7,
        5,
    )
    consumer.alter(clear=["filter", "max_deliver", "max_ack_pending", "backoff"])
    info = consumer.info()
    assert (info.filter, info.ack_wait.seconds, info.max_deliver, info.max_ack_pending, info.backoff) == (
        None,
        90,
        None,
        None,
        None,
    )


def test_creating_again_changes_nothing(
    hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer
) -> None:
    assert hg.stream("orders", create=True).info().lanes == 4
    assert hg.stream("orders", create=True, lanes=4, dedup_window=timedelta(minutes=5)).info().lanes == 4
    with pytest.raises(headgate.errors.SettingsDiffer, match="lanes is 4, not 9; lane_by is hash, not key") as told:
        hg.stream("orders", create=True, lanes=9, lane_by="key")
    assert "lane_by cannot be changed" in str(told.value.hint)
    again = stream.consumer("billing", create=True)
    assert (again.order, again.ack_wait) == ("none", timedelta(seconds=30))
    stream.consumer("billing", create=True, order="none", ack_wait=30, start="end")
    with pytest.raises(
        headgate.errors.SettingsDiffer, match="order is none, not key; ack_wait is 00:00:30, not 00:00:01"
    ):
        stream.consumer("billing", create=True, order="key", ack_wait=1)


def test_drop(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("a")
    consumer.drop()
    assert stream.consumers() == []
    with pytest.raises(headgate.errors.ConsumerNotFound):
        consumer.receive()
    stream.drop()
    assert hg.streams() == []
    for call in (
        lambda: stream.send("x"),
        stream.info,
        stream.drop,
        lambda: consumer.receive(),
        lambda: consumer.ack(["0.1.1"]),
    ):
        with pytest.raises(headgate.errors.StreamNotFound):
            call()


def test_made_again_under_a_live_consumer(
    hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer
) -> None:
    """Objects are names: they go on with the new stream. Before its consumer exists they say so."""
    stream.send("old")
    [old] = consumer.receive(wait=5)
    stream.drop()
    hg.stream("orders", create=True, lanes=2)
    with pytest.raises(headgate.errors.ConsumerNotFound):
        consumer.receive()
    assert stream.send("new") == 1
    stream.consumer("billing", create=True, order="key")
    [message] = consumer.receive(wait=5)
    assert message.data == "new"
    assert not old.ack(), "an ack of the old one's does not hit the new one's"
    assert message.ack()


def test_maintain(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    stream.send("a", id="1")
    assert all(isinstance(task, str) and isinstance(subject, str) for task, subject, _ in hg.maintain())


def test_messages_are_discarded_wherever_they_are(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    for i in range(6):
        stream.send(str(i), key=f"k.{i % 3}")
    first = consumer.receive(2)
    first[0].nack(delay=3600)
    assert consumer.discard(filter="k.1", older_than=3600) == headgate.types.Discarded(0, 0)
    assert consumer.discard(filter=["k.0", "k.1"], older_than=timedelta(0)) == headgate.types.Discarded(4, 0)
    assert consumer.discard(all=True) == headgate.types.Discarded(2, 0)
    assert consumer.info().lag == 0
    assert consumer.receive(10) == []
    assert {m.state for m in consumer.peek(10)} == {"discarded"}


def test_a_discard_says_what(consumer: headgate.Consumer) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match="it is not said what to discard"):
        consumer.discard()
    with pytest.raises(headgate.errors.InvalidArgument):
        consumer.discard(seqs=["1"])  # type: ignore[list-item]


def test_discards_go_in_steps(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    for _ in range(3):
        stream.send_batch([str(i) for i in range(5000)])
    step = consumer.discard_some(all=True)
    assert 0 < step.discarded <= 10_000
    assert step.more is not None
    stream.send("later")
    rest = consumer.discard_some(all=True, go_on=step.more)
    assert (step.discarded + rest.discarded, rest.more) == (15_000, None)
    assert [m.data for m in consumer.receive(10)] == ["later"]
    for _ in range(3):
        stream.send_batch([str(i) for i in range(5000)])
    assert consumer.discard(all=True) == headgate.types.Discarded(15_001, 0)


def test_replay_attempts_and_life(stream: headgate.Stream) -> None:
    consumer = stream.consumer("again", create=True)
    seqs = stream.send_batch([{"n": n} for n in range(3)], key="a.b")
    first = take(consumer, 3)
    failed = next(m for m in first if m.seq == seqs[1])
    failed.nack(delay=3600, error="broken")
    consumer.ack([m for m in first if m.seq != seqs[1]])
    assert consumer.retry_now(all=True) == 1
    assert consumer.retry_now(all=False, seqs=[]) == 0
    [m] = consumer.receive(10, wait=1)
    m.ack()
    assert consumer.replay(seqs=[seqs[0], 99]) == headgate.types.Replayed(1, 1, 0, None)
    assert consumer.replay(from_seq=seqs[0], to_seq=seqs[1], filter="a.>") == headgate.types.Replayed(1, 0, 1, None)
    noon = datetime.now(UTC) - timedelta(hours=1)
    assert consumer.replay(from_time=noon, to_time=noon.replace(year=2999)).replayed == 1
    assert consumer.replay(from_time=str(noon)) == headgate.types.Replayed(0, 0, 3, None)
    again = take(consumer, 3)
    assert sorted(m.seq for m in again) == seqs
    assert {m.attempt for m in again} == {1}
    [attempt] = consumer.attempts()
    assert (attempt.seq, attempt.attempt, attempt.outcome, attempt.error) == (seqs[1], 1, "nacked", "broken")
    assert stream.attempts(seqs[1]) == [attempt]
    assert consumer.attempts(seqs[0]) == []
    assert [e.event for e in stream.message_life(seqs[1])] == ["sent", "delivered", "failed", "replayed", "delivered"]
    chosen: dict[str, Any]
    for chosen in ({}, {"from_seq": 2, "to_seq": 1}, {"from_time": "noon"}, {"from_time": 7}):
        with pytest.raises(headgate.errors.InvalidArgument):
            consumer.replay(**chosen)
    wrong: dict[str, Any]
    for wrong in ({}, {"seqs": [1], "all": True}):
        with pytest.raises(headgate.errors.InvalidArgument):
            consumer.retry_now(**wrong)


class TestTimesWithoutAZone:
    """A wall clock's time is read as another moment in another place: it is refused, not guessed."""

    NOON = datetime(2026, 1, 31, 12, 0)  # noqa: DTZ001 - the point

    @pytest.mark.parametrize("moment", [NOON, str(NOON), "2026-01-31", "2026-01-31T12:00"])
    def test_refused(self, stream: headgate.Stream, consumer: headgate.Consumer, moment: datetime | str) -> None:
        with pytest.raises(headgate.errors.InvalidPosition, match=r"has no time zone\nhint: .*astimezone\(\)"):
            stream.consumer("new", create=True, start=moment)
        with pytest.raises(headgate.errors.InvalidPosition, match="has no time zone"):
            consumer.seek(moment)
        for end in ("from_time", "to_time"):
            with pytest.raises(headgate.errors.InvalidArgument, match="has no time zone"):
                consumer.replay(**{end: moment})  # type: ignore[arg-type]

    def test_with_a_zone(self, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
        stream.send("x")
        hour = timedelta(hours=1)
        now = datetime.now(timezone(timedelta(hours=9)))
        early = stream.consumer("early", create=True, start=now - hour)
        late = stream.consumer("late", create=True, start=now + hour)
        assert [early.info().unread, late.info().unread] == [1, 0]
        early.seek((now + hour).isoformat())
        late.seek(now - hour)
        assert [early.info().unread, late.info().unread] == [0, 1]

    def test_in_the_shell_it_is_local_time(
        self, run: CommandLine, orders: headgate.Stream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There somebody types, whose clock is the terminal's."""
        orders.send("x")
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            now = datetime.now()  # noqa: DTZ005 - what the clock on that wall says
            before, after = ((now + timedelta(minutes=m)).isoformat(" ", "seconds") for m in (-30, 30))
            for name, position in (("early", before), ("late", after)):
                assert run("consumer", "add", "orders", name, "--start", position).code == 0
            assert [orders.consumer(name).info().unread for name in ("early", "late")] == [1, 0]
            assert run("consumer", "seek", "orders", "late", before).code == 0
            assert orders.consumer("late").info().unread == 1
            assert run("consumer", "seek", "orders", "late", "noon").code == 2
        finally:
            monkeypatch.undo()
            time.tzset()
