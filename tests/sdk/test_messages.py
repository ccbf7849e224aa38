"""The SDK from a user's side: what is sent is what is received, and what becomes of it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

import headgate
from headgate import Outgoing
from support.clients import is_empty, take
from support.command_line import CommandLine


@pytest.fixture
def stream(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
def consumer(stream: headgate.Stream) -> headgate.Consumer:
    return stream.consumer("billing", create=True)


def test_send_receive_ack(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    seq = stream.send({"quantity": 4}, key="orders.cus_a.ord_1", headers={"trace": "t1"})
    [message] = consumer.receive(10, wait=5)
    assert (message.seq, message.key, message.data, message.attempt) == (seq, "orders.cus_a.ord_1", {"quantity": 4}, 1)
    assert message.headers == {"trace": "t1"}
    assert message.text == '{"quantity":4}'
    assert message.channel is None
    assert before < message.created_at < datetime.now(UTC) + timedelta(seconds=5)
    assert message.ack_id == f"{message.delivery}.{seq}"
    assert repr(message) == f"Message(seq={seq}, key='orders.cus_a.ord_1', attempt=1)"
    assert consumer.info().in_flight == 1
    assert message.ack()
    assert not message.ack(), "it was acked already"
    assert is_empty(consumer)
    assert consumer.info().lag == 0


def test_nack(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("a")
    [message] = consumer.receive(wait=5)
    assert message.nack(delay=60, error="no luck")
    assert not message.nack(), "it was nacked already"
    [peeked] = consumer.peek(states=["parked"])
    assert (peeked.last_error, peeked.reason, peeked.attempt) == ("no luck", "nacked", 1)
    assert peeked.visible_at is not None
    assert timedelta(seconds=30) < peeked.visible_at - datetime.now(UTC) < timedelta(seconds=61)
    assert is_empty(consumer)
    assert consumer.retry_now(all=True) == 1
    [message] = consumer.receive(wait=5)
    assert (message.data, message.attempt) == ("a", 2)


def test_what_waits_behind_its_key_can_be_looked_at(stream: headgate.Stream) -> None:
    """It is due when the one before it is done: at no time that is known."""
    consumer = stream.consumer("ordered", create=True, order="key")
    stream.send_batch([("k", "first"), ("k", "second")])
    first, _ = consumer.receive(2, wait=5)
    assert first.nack(delay=60)
    assert consumer.receive(2) == []
    assert [(p.data, p.state, p.visible_at is None) for p in consumer.peek()] == [
        ("first", "parked", False),
        ("second", "parked", True),
    ]
    [state] = [s for s in stream.hg.insights.message(stream.name, consumer.peek()[1].seq) if s.consumer == "ordered"]
    assert (state.state, state.visible_at) == ("parked", None)
    parked = stream.hg.run("select visible_at from headgate.parked_messages where key = 'k' order by seq", ())
    assert [row[0] is None for row in parked] == [False, True]


@pytest.mark.parametrize(
    "error", ["a\x00b", "half \ud800", ValueError("of a kind")], ids=["NUL", "surrogate", "exception"]
)
def test_nack_takes_any_error(stream: headgate.Stream, consumer: headgate.Consumer, error: Any) -> None:
    """Saying why something failed must not fail."""
    stream.send("a")
    [message] = consumer.receive(wait=5)
    assert message.nack(delay=60, error=error)
    assert consumer.peek()[0].last_error in ("ab", "half ?", "of a kind")


def test_backoff(stream: headgate.Stream) -> None:
    consumer = stream.consumer("slow", create=True, backoff=[0, 100])
    stream.send("a")
    for _ in range(2):
        [message] = consumer.receive(wait=5)
        message.nack()
    [peeked] = consumer.peek()
    assert peeked.attempt == 2
    assert peeked.visible_at is not None
    assert peeked.visible_at > datetime.now(UTC) + timedelta(seconds=50)


def test_extend(stream: headgate.Stream) -> None:
    consumer = stream.consumer("quick", create=True, ack_wait=0.3)
    stream.send("a")
    [message] = consumer.receive(wait=5)
    assert message.extend(60)
    time.sleep(0.4)
    assert is_empty(consumer), "it would have come again"
    assert message.ack()
    assert not message.extend(60)


def test_ack_wait_of_one_receive(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("a")
    [first] = consumer.receive(wait=5, ack_wait=0.05)
    [second] = consumer.receive(wait=5, ack_wait=timedelta(hours=1))
    assert (second.seq, second.attempt) == (first.seq, 2)
    [seen] = consumer.peek(states=["delivered"])
    assert seen.visible_at is not None
    assert seen.visible_at > datetime.now(UTC) + timedelta(minutes=50)
    assert second.ack()
    for bad in (0, -1, timedelta(days=8)):
        with pytest.raises(headgate.errors.InvalidArgument) as error:
            consumer.receive(ack_wait=bad)
        assert error.value.hint == "choose more than 0 and at most 7 days"
    stream.send("b")
    with consumer.transaction(wait=5, ack_wait=3600) as (_, [message]):
        [seen] = consumer.peek(states=["delivered"])
        assert seen.visible_at is not None
        assert seen.visible_at > datetime.now(UTC) + timedelta(minutes=50)
    assert not message.extend(1)


def test_extend_one_of_a_batch(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send_batch(list("abcd"), key="one lane")
    a, b, c, d = take(consumer, 4)
    assert a.delivery == d.delivery
    assert a.extend(3600)
    assert b.extend(0)
    assert c.extend(0.05)
    again = take(consumer, 2)
    assert sorted((m.data, m.attempt) for m in again) == [("b", 2), ("c", 2)]
    assert not b.ack()
    assert consumer.ack([a.delivery]) == headgate.types.Settled(2, 0)
    assert consumer.ack(again) == headgate.types.Settled(2, 0)
    assert consumer.info().lag == 0


def test_an_ack_after_the_deadline(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("a")
    [message] = consumer.receive(wait=5)
    assert message.extend(0)
    assert not message.nack()
    assert message.ack(), "nobody else has it"
    assert not message.ack()
    assert is_empty(consumer)


def test_the_deadline_passes(stream: headgate.Stream) -> None:
    consumer = stream.consumer("quick", create=True, ack_wait=timedelta(milliseconds=50))
    stream.send("a")
    [first] = consumer.receive(wait=5)
    [second] = consumer.receive(wait=5)
    assert (second.seq, second.attempt) == (first.seq, 2)
    assert not first.ack()
    assert not first.nack()
    assert not first.extend(1)
    assert second.ack()


def test_several_at_once(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    """Messages or ack_ids, of a message or a whole delivery; those that are too late are counted."""
    stream.send_batch(list("abcdef"), key="one lane")
    a, b, c = take(consumer, 3)
    assert consumer.ack([a, b.ack_id]) == headgate.types.Settled(2, 0)
    assert consumer.ack([a, b, c]) == headgate.types.Settled(1, 2)
    d, e, f = take(consumer, 3)
    assert d.delivery == f.delivery
    assert consumer.extend([d, e], timedelta(minutes=1)) == headgate.types.Settled(2, 0)
    assert consumer.ack([d.delivery]) == headgate.types.Settled(3, 0)
    assert consumer.ack([]) == consumer.nack([]) == headgate.types.Settled(0, 0)
    assert consumer.nack([e, f]) == headgate.types.Settled(0, 2)


def test_receive_with_acks(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send_batch(list("abc"), key="k")
    first = consumer.receive(1, wait=5)
    second = consumer.receive(1, acks=first, wait=5)
    third = consumer.receive(1, acks=[second[0].ack_id], wait=5)
    assert [m.data for m in first + second + third] == ["a", "b", "c"]
    assert consumer.receive(1, acks=third, wait=0.05) == []
    assert consumer.info().lag == 0


def test_send_batch(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    """An element is data, a (key, data) pair, or an Outgoing; `key` is for those without one."""
    seqs = stream.send_batch(
        [
            {"n": 1},
            ("own", {"n": 2}),
            (None, {"n": 3}),
            Outgoing({"n": 4}),
            Outgoing({"n": 5}, key="mine", headers={"h": [1]}, id="five"),
            "six",
        ],
        key="shared",
    )
    assert seqs == sorted(set(seqs))
    messages = take(consumer, 6)
    assert [m.seq for m in messages] == seqs
    assert [(m.key, m.data) for m in messages] == [
        ("shared", {"n": 1}),
        ("own", {"n": 2}),
        (None, {"n": 3}),
        ("shared", {"n": 4}),
        ("mine", {"n": 5}),
        ("shared", "six"),
    ]
    assert [m.headers for m in messages] == [None, None, None, None, {"h": [1]}, None]
    assert stream.send_batch([]) == []
    assert stream.send_batch(str(n) for n in range(3)) == [seqs[-1] + n for n in (1, 2, 3)], "any iterable"


def test_the_largest_batch(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    seqs = stream.send_batch([{"n": n} for n in range(10_000)])
    assert len(seqs) == 10_000
    assert [m.data["n"] for m in take(consumer, 10_000)] == list(range(10_000))
    with pytest.raises(headgate.errors.InvalidArgument, match=r"10001 messages[\s\S]*hint: "):
        stream.send_batch(["x"] * 10_001)


def test_headers(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    headers = {"text": 'quote " and \\ and ü', "number": 1.5, "list": [1, None, {"a": True}], "content-type": "text/x"}
    stream.send({"a": 1}, headers=headers)
    stream.send(b"\x00", headers={"mine": 1})
    stream.send("[1]", headers={"mine": 1})
    stream.send("plain", headers={})
    messages = take(consumer, 4)
    assert messages[0].headers == headers
    assert messages[0].data == '{"a":1}', "who sets a content-type of text decides that it is text"
    assert [m.data for m in messages[1:]] == [b"\x00", "[1]", "plain"]
    assert messages[1].headers == {"mine": 1, "content-encoding": "base64"}
    assert messages[2].headers == {"mine": 1, "content-type": "text/plain"}
    assert messages[3].headers is None


@pytest.mark.parametrize("headers", ['[1, "two"]', '"text"', "7", "null", "{}"])
def test_headers_from_sql_can_be_anything(
    stream: headgate.Stream, consumer: headgate.Consumer, database_url: str, headers: str
) -> None:
    with psycopg.connect(database_url) as db:
        db.execute("select headgate.send('orders', '{\"a\": 1}', headers => %s::jsonb)", [headers])
    [message] = consumer.receive(wait=5)
    assert message.data == {"a": 1}


def test_delay(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("later", delay=timedelta(hours=1))
    stream.send("soon", delay=0.2)
    stream.send_batch([Outgoing("now", delay=0)])
    assert [m.data for m in take(consumer, 1)] == ["now"]
    assert [m.data for m in consumer.receive(wait=5)] == ["soon"]
    assert is_empty(consumer)
    [stored, *_] = stream.messages()
    assert stored.deliver_at is not None
    assert stored.deliver_at > datetime.now(UTC) + timedelta(minutes=30)


def test_ids(stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    first = stream.send("a", id="1")
    assert stream.send("b", id="1") == first
    seqs = stream.send_batch([Outgoing("c", id="2"), Outgoing("d", id="1"), Outgoing("e", id="2"), "f"])
    assert seqs[1] == first
    assert seqs[0] == seqs[2]
    assert [m.data for m in take(consumer, 3)] == ["a", "c", "f"]


def test_wait_wakes_up_when_somebody_sends(
    database_url: str, stream: headgate.Stream, consumer: headgate.Consumer
) -> None:
    waited: list[float] = []
    found: list[headgate.Message] = []

    def wait() -> None:
        began = time.monotonic()
        found.extend(consumer.receive(10, wait=30))
        waited.append(time.monotonic() - began)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    with headgate.connect(database_url) as other:
        other.stream("orders").send("x")
        sent = time.monotonic()
        thread.join(20)
        assert time.monotonic() - sent < 5
    assert [m.data for m in found] == ["x"]
    assert waited[0] >= 0.3


@pytest.mark.alone
def test_wait_is_over_in_time(consumer: headgate.Consumer) -> None:
    for wait in (0, 0.3):
        began = time.monotonic()
        assert consumer.receive(10, wait=wait) == []
        assert wait <= time.monotonic() - began < wait + 3


def test_filter_and_order(stream: headgate.Stream) -> None:
    orders = stream.consumer("some", create=True, filter=["orders.*.new", "refunds.>"], order="key")
    stream.send_batch([("orders.a.new", 1), ("orders.a.old", 2), ("refunds.x.y", 3), ("orders.a.new", 4), (None, 5)])
    messages = orders.receive(1, wait=5)
    assert [m.data for m in messages] == [1]
    assert [m.data for m in take(orders, 1)] == [3], "4 waits for 1"
    messages[0].ack()
    assert [m.data for m in take(orders, 1)] == [4]


def test_start(stream: headgate.Stream) -> None:
    seqs = stream.send_batch(["a", "b", "c"])
    stream.tick()
    between = datetime.now(UTC)
    time.sleep(0.01)
    stream.send("d")
    expected = {"beginning": "abcd", "end": "", seqs[1]: "bcd", between: "d"}
    for number, (start, datas) in enumerate(expected.items()):
        consumer = stream.consumer(f"c{number}", create=True, start=start)
        assert "".join(m.data for m in take(consumer, len(datas))) == datas
        assert is_empty(consumer)


def test_a_time_across_a_change_of_the_clocks(stream: headgate.Stream, hg: headgate.Headgate) -> None:
    """Whatever the session's time zone: hours are counted, not days of 23 or 25."""
    with hg.pool.connection() as conn, conn.transaction():
        conn.execute("set local timezone = 'Europe/Berlin'")
        at = datetime.now(UTC) + timedelta(days=200)
        stream.send("x", deliver_at=at, conn=conn)
    [m] = stream.messages(1)
    assert m.deliver_at
    assert abs(m.deliver_at - at) < timedelta(milliseconds=50)


class TestDeliverAt:
    """An absolute time, which the database's clock tells."""

    def test_sending(self, stream: headgate.Stream) -> None:
        soon = datetime.now(timezone(timedelta(hours=-3))) + timedelta(hours=5)
        seqs = [
            stream.send("a", deliver_at=soon),
            *stream.send_batch(
                [headgate.Outgoing("b", deliver_at=soon.isoformat()), headgate.Outgoing("c", delay=60), "d"]
            ),
            stream.send("e", deliver_at=soon - timedelta(days=400)),
        ]
        found = {m.seq: m.deliver_at for m in stream.messages(10)}
        assert sorted(found) == seqs
        at = [found[seq] for seq in seqs]
        for one in at[:2]:
            assert one
            assert abs(one - soon) < timedelta(milliseconds=50)
        assert at[2]
        assert timedelta(seconds=30) < at[2] - datetime.now(UTC) < timedelta(seconds=61)
        consumer = stream.consumer("c", create=True)
        assert sorted(m.data for m in take(consumer, 2)) == ["d", "e"]
        assert is_empty(consumer)

    def test_refused(self, stream: headgate.Stream) -> None:
        with pytest.raises(headgate.errors.InvalidArgument, match="both delay and deliver_at"):
            stream.send("x", delay=1, deliver_at=datetime.now(UTC))
        with pytest.raises(headgate.errors.InvalidArgument, match="has no time zone"):
            stream.send("x", deliver_at=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(headgate.errors.InvalidArgument, match="is not a time"):
            stream.send_batch([headgate.Outgoing("x", deliver_at="noon")])

    def test_the_command_line(self, run: CommandLine, stream: headgate.Stream) -> None:
        assert run("send", stream.name, "x", "--at", "2999-01-31T12:00:00+01:00").code == 0
        [m] = stream.messages(1)
        assert m.deliver_at
        assert abs(m.deliver_at - datetime(2999, 1, 31, 11, tzinfo=UTC)) < timedelta(seconds=1)
        assert '"deliver_at"' in run("send", stream.name, "x", "--at", "2999-01-31T12:00Z", "--as-curl").out
        assert run("send", stream.name, "-", "--at", "2999-01-31T12:00Z").code == 2


@pytest.mark.parametrize("one", ["abc", b"abc", {"a": 1}, 5, None])
def test_a_batch_that_is_one_message(stream: headgate.Stream, one: Any) -> None:
    with pytest.raises(
        headgate.errors.InvalidArgument, match=r"takes several messages, not a single \w+\nhint: .*send\(\)"
    ):
        stream.send_batch(one)
    assert stream.messages() == []
