"""The SDK from a user's side: what is sent is what is received, and what each call does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import wait_until

import headgate
from headgate import Outgoing


@pytest.fixture
def hg(database_url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(database_url) as hg:
        yield hg


@pytest.fixture
def stream(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
def consumer(stream: headgate.Stream) -> headgate.Consumer:
    return stream.consumer("billing", create=True)


def take(consumer: headgate.Consumer, count: int) -> list[headgate.Message]:
    """Exactly `count` messages, in the order of the stream."""
    found: list[headgate.Message] = []
    while len(found) < count:
        more = consumer.receive(count - len(found), wait=5)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return sorted(found, key=lambda m: m.seq)


def is_empty(consumer: headgate.Consumer) -> bool:
    return not consumer.receive(100, wait=0.05)


# --- connecting


def test_making_one_connects_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    headgate.Headgate("postgresql://nobody@127.0.0.1:1/nothing")
    headgate.AsyncHeadgate("postgresql://nobody@127.0.0.1:1/nothing")
    headgate.Headgate()
    headgate.AsyncHeadgate(directory="elsewhere")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == len(threading.enumerate())


def test_url(database_url: str, hg: headgate.Headgate) -> None:
    assert hg.url == database_url


def test_embedded(tmp_path: Path) -> None:
    """Installs its schema by itself; what was sent is there when it is opened again."""
    directory = str(tmp_path / "here")
    with headgate.connect(directory=directory) as hg:
        stream = hg.stream("orders", create=True)
        consumer = stream.consumer("billing", create=True)
        stream.send({"quantity": 4}, key="orders.cus_a.ord_1")
        [message] = consumer.receive(10, wait=5)
        assert (message.data, message.key) == ({"quantity": 4}, "orders.cus_a.ord_1")
        stream.send("later")
        url = hg.url
        with headgate.connect(directory=directory) as second:
            assert second.url == url, "one server for all that use the directory"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    with headgate.connect(directory=directory) as hg:
        [message] = hg.stream("orders").consumer("billing").receive(10, wait=5)
        assert message.data == "later"


def test_without_open(database_url: str) -> None:
    hg = headgate.Headgate(database_url)
    with pytest.raises(headgate.Error, match=r"not open[\s\S]*hint: "):
        hg.stream("orders")
    with pytest.raises(headgate.Error, match=r"not running[\s\S]*hint: "):
        headgate.Headgate().url  # noqa: B018


def test_closed(database_url: str) -> None:
    """Closing twice does nothing; a call afterwards says what to do; it can be opened again."""
    hg = headgate.connect(database_url)
    stream = hg.stream("orders", create=True)
    consumer = stream.consumer("billing", create=True)
    hg.close()
    hg.close()
    for call in (lambda: stream.send("x"), lambda: consumer.receive(), lambda: hg.streams()):
        with pytest.raises(headgate.Error, match=r"not open[\s\S]*hint: "):
            call()
    with pytest.raises(headgate.Error, match="not open"), consumer.transaction():
        pytest.fail("the block must not run")
    with hg:
        stream.send("x")
        assert [m.data for m in consumer.receive(wait=5)] == ["x"]


def test_the_server_goes_away_and_comes_back(database_url: str) -> None:
    """Connections that were cut are replaced: at most one call each fails, and says that it can be repeated."""
    with headgate.connect(database_url) as hg:
        stream = hg.stream("orders", create=True)
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headgate' "
                "and datname = current_database()"
            )
        with pytest.raises(headgate.ConnectionFailed, match="repeated"):
            stream.send("x")
        stream.send("x")


def test_a_pool_that_is_used_up(database_url: str) -> None:
    with headgate.connect(database_url, max_connections=1, timeout=0.2) as hg:
        stream = hg.stream("orders", create=True)
        with hg.pool.connection():
            with pytest.raises(headgate.ConnectionFailed, match=r"within 0.2 s[\s\S]*hint: "):
                stream.send("x")
        stream.send("x")


# --- sending and receiving


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
    assert consumer.retry_now() == 1
    [message] = consumer.receive(wait=5)
    assert (message.data, message.attempt) == ("a", 2)


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
    assert consumer.ack([a, b.ack_id]) == headgate.Settled(2, 0)
    assert consumer.ack([a, b, c]) == headgate.Settled(1, 2)
    d, e, f = take(consumer, 3)
    assert d.delivery == f.delivery
    assert consumer.extend([d, e], timedelta(minutes=1)) == headgate.Settled(2, 0)
    assert consumer.ack([d.delivery]) == headgate.Settled(3, 0)
    assert consumer.ack([]) == consumer.nack([]) == headgate.Settled(0, 0)
    assert consumer.nack([e, f]) == headgate.Settled(0, 2)


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
    with pytest.raises(headgate.InvalidArgument, match=r"10001 messages[\s\S]*hint: "):
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
        consumer = stream.consumer(f"c{number}", create=True, start=start)  # type: ignore[arg-type]
        assert "".join(m.data for m in take(consumer, len(datas))) == datas
        assert is_empty(consumer)


# --- looking


def test_insights(hg: headgate.Headgate, stream: headgate.Stream) -> None:
    consumer = stream.consumer("billing", create=True, filter="k.>", order="key", max_deliver=1, max_ack_pending=50,
                               backoff={"first": 1}, ack_wait=7)  # fmt: skip
    seqs = stream.send_batch(
        [("k.1", "done"), ("k.2", "dead"), ("k.3", "in flight"), ("k.4", "parked"), ("k.5", "new"), ("x", "-")]
    )
    by_data = {m.data: m for m in take(consumer, 5)}
    by_data["done"].ack()
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
    assert states == {"done": "done", "dead": "done", "in flight": "delivered", "parked": "parked", "new": "parked"}
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
    assert consumer.redrive() == 0
    assert [m.data for m in take(consumer, 1)] == [b"\x01"]


# --- changing things


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
    assert consumer.discard([1]) == 1
    assert consumer.retry_now([1, 2]) == 1
    assert [m.data for m in take(consumer, 1)] == ["b"]


def test_alter(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.alter(dedup_window=1, max_message_bytes=10, segment_rows=5000)
    assert stream.info().dedup_window == timedelta(seconds=1)
    with pytest.raises(headgate.MessageTooLarge):
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
    assert hg.stream("orders", create=True, lanes=9).info().lanes == 4
    again = stream.consumer("billing", create=True, order="key", ack_wait=1)
    assert (again.order, again.ack_wait) == ("none", timedelta(seconds=30))


def test_drop(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    stream.send("a")
    consumer.drop()
    assert stream.consumers() == []
    with pytest.raises(headgate.ConsumerNotFound):
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
        with pytest.raises(headgate.StreamNotFound):
            call()


def test_made_again_under_a_live_consumer(
    hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer
) -> None:
    """Objects are names: they go on with the new stream. Before its consumer exists they say so."""
    stream.send("old")
    [old] = consumer.receive(wait=5)
    stream.drop()
    hg.stream("orders", create=True, lanes=2)
    with pytest.raises(headgate.ConsumerNotFound):
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


# --- threads


def test_threads_share_one_client(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    """Eight threads send, receive, ack, and work in transactions, all on the same objects."""
    errors: list[BaseException] = []
    seen: list[int] = []
    target = 8 * 30

    def work(number: int) -> None:
        try:
            for n in range(10):
                stream.send_batch([{"thread": number, "n": n}] * 3)
                with consumer.transaction(2) as (_, messages):
                    pass
                seen.extend(m.seq for m in messages)
                messages = consumer.receive(3)
                assert consumer.ack(messages) == headgate.Settled(len(messages), 0)
                seen.extend(m.seq for m in messages)
            while len(seen) < target and not errors:
                messages = consumer.receive(10, wait=0.05)
                assert consumer.ack(messages).stale == 0
                seen.extend(m.seq for m in messages)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(seen) == len(set(seen)) == target
    wait_until(lambda: consumer.info().lag == 0, 5)
