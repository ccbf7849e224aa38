"""Errors: each a class of its own under headgate.Error, with a hint; and what is not an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

import headgate
from headgate.database import schema
from headgate.errors import _BY_SQLSTATE, from_database
from headgate.postgres.cluster import Cluster
from support.databases import new_database

Call = Callable[[headgate.Headgate, headgate.Stream, headgate.Consumer], object]


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    """One database for all: a mistake leaves nothing behind."""
    with new_database(cluster) as url:
        yield url


@pytest.fixture
def consumer(url: str) -> Iterator[headgate.Consumer]:
    with headgate.connect(url) as hg:
        stream = hg.stream("s", create=True)
        yield stream.consumer("c", create=True)
        stream.drop()


MISTAKES: dict[str, tuple[type[headgate.Error], Call]] = {
    "stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.stream("no")),
    "stream info": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.stream("no")),
    "consumers of no stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.consumers("no")),
    "consumer info of no stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.consumer("no", "c")),
    "peek in no stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.peek("no", "c")),
    "message of no stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.message("no", 1)),
    "consumer": (headgate.errors.ConsumerNotFound, lambda hg, s, c: s.consumer("no")),
    "consumer info": (headgate.errors.ConsumerNotFound, lambda hg, s, c: hg.insights.consumer("s", "no")),
    "stream name": (headgate.errors.InvalidName, lambda hg, s, c: hg.stream("no spaces", create=True)),
    "empty name": (headgate.errors.InvalidName, lambda hg, s, c: hg.stream("", create=True)),
    "long name": (headgate.errors.InvalidName, lambda hg, s, c: hg.stream("x" * 51, create=True)),
    "quotes": (headgate.errors.InvalidName, lambda hg, s, c: hg.stream("'; drop schema headgate; --", create=True)),
    "consumer name": (headgate.errors.InvalidName, lambda hg, s, c: s.consumer("no/slash", create=True)),
    "filter": (headgate.errors.InvalidFilter, lambda hg, s, c: s.consumer("x", create=True, filter="a..b")),
    "filter >": (headgate.errors.InvalidFilter, lambda hg, s, c: s.consumer("x", create=True, filter=["a", "a.>.b"])),
    "empty filter": (headgate.errors.InvalidFilter, lambda hg, s, c: s.consumer("x", create=True, filter=[])),
    "filter of a number": (headgate.errors.InvalidFilter, lambda hg, s, c: s.consumer("x", create=True, filter=5)),  # type: ignore[arg-type]
    "filter when looking": (headgate.errors.InvalidFilter, lambda hg, s, c: s.messages(filter="a..b")),
    "no lanes": (headgate.errors.InvalidLanes, lambda hg, s, c: hg.stream("x", create=True, lanes=0)),
    "many lanes": (headgate.errors.InvalidLanes, lambda hg, s, c: hg.stream("x", create=True, lanes=1025)),
    "very many lanes": (headgate.errors.InvalidArgument, lambda hg, s, c: hg.stream("x", create=True, lanes=2**40)),
    "half a lane": (headgate.errors.InvalidArgument, lambda hg, s, c: hg.stream("x", create=True, lanes=1.5)),  # type: ignore[arg-type]
    "ack id": (headgate.errors.InvalidAckId, lambda hg, s, c: c.ack(["nonsense"])),
    "one ack id": (headgate.errors.InvalidAckId, lambda hg, s, c: c.nack(["0.1.1", "0.1.1.1"])),
    "ack id in receive": (headgate.errors.InvalidAckId, lambda hg, s, c: c.receive(acks=["'"])),
    "ack id of a number": (headgate.errors.InvalidAckId, lambda hg, s, c: c.ack([17])),  # type: ignore[list-item]
    "ack of a str": (headgate.errors.InvalidArgument, lambda hg, s, c: c.ack("0.1.1")),
    "batch of 0": (headgate.errors.InvalidArgument, lambda hg, s, c: c.receive(0)),
    "batch of 10001": (headgate.errors.InvalidArgument, lambda hg, s, c: c.receive(10_001)),
    "batch of a str": (headgate.errors.InvalidArgument, lambda hg, s, c: c.receive("10")),  # type: ignore[arg-type]
    "order": (headgate.errors.InvalidArgument, lambda hg, s, c: s.consumer("x", create=True, order="time")),  # type: ignore[arg-type]
    "ack_wait": (headgate.errors.InvalidArgument, lambda hg, s, c: s.consumer("x", create=True, ack_wait=0)),
    "max_deliver": (headgate.errors.InvalidArgument, lambda hg, s, c: s.consumer("x", create=True, max_deliver=0)),
    "max_ack_pending": (headgate.errors.InvalidArgument, lambda hg, s, c: c.alter(max_ack_pending=-1)),
    "backoff": (headgate.errors.InvalidArgument, lambda hg, s, c: s.consumer("x", create=True, backoff={"second": 1})),
    "clear": (headgate.errors.InvalidArgument, lambda hg, s, c: c.alter(clear=["order"])),
    "start": (headgate.errors.InvalidPosition, lambda hg, s, c: s.consumer("x", create=True, start="whenever")),
    "join": (headgate.errors.InvalidArgument, lambda hg, s, c: c.join()),
    "heartbeat": (headgate.errors.InvalidArgument, lambda hg, s, c: c.heartbeat()),
    "leave": (headgate.errors.InvalidArgument, lambda hg, s, c: c.leave()),
    "seek": (headgate.errors.InvalidPosition, lambda hg, s, c: c.seek("-1x")),
    "delay": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send("x", delay=float("nan"))),
    "nack delay": (headgate.errors.InvalidArgument, lambda hg, s, c: c.nack(["0.1.1"], delay=-1)),
    "extend": (headgate.errors.InvalidArgument, lambda hg, s, c: c.extend(["0.1.1"], -1)),
    "key": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send("x", key=5)),  # type: ignore[arg-type]
    "id": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send("x", id=5)),  # type: ignore[arg-type]
    "headers": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send("x", headers=[1])),  # type: ignore[arg-type]
    "triple": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send_batch([("k", "d", "h")])),
    "seqs": (headgate.errors.InvalidArgument, lambda hg, s, c: c.redrive(seqs="1")),  # type: ignore[arg-type]
    "limit": (headgate.errors.InvalidArgument, lambda hg, s, c: c.peek("all")),  # type: ignore[arg-type]
    "segments of no stream": (headgate.errors.StreamNotFound, lambda hg, s, c: hg.insights.segments("no")),
    "max_message_bytes": (headgate.errors.InvalidArgument, lambda hg, s, c: s.alter(max_message_bytes=0)),
    "data": (headgate.errors.DataNotSerializable, lambda hg, s, c: s.send({1, 2})),
    "connection": (headgate.errors.InvalidArgument, lambda hg, s, c: s.send("x", conn=object())),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(consumer: headgate.Consumer, mistake: str) -> None:
    expected, call = MISTAKES[mistake]
    hg, stream = consumer.hg, consumer.hg.stream("s")
    with pytest.raises(headgate.Error) as caught:
        call(hg, stream, consumer)
    assert type(caught.value) is expected
    assert caught.value.message
    assert caught.value.hint
    assert str(caught.value) == f"{caught.value.message}\nhint: {caught.value.hint}"
    stream.send("the connection is fine")
    assert hg.streams() == ["s"], "and nothing was left behind"
    assert stream.consumers() == ["c"]


def test_sizes(consumer: headgate.Consumer) -> None:
    """1 MB works, 100 MB is refused with the limit and a hint, and the limit can be raised up to 256 MB."""
    stream = consumer.hg.stream("s")
    text = "ü" * 500_000
    stream.send(text)
    stream.send({"text": text})
    assert {len(m.text.encode()) for m in consumer.receive(10, wait=5)} == {1_000_000, 1_000_011}
    with pytest.raises(
        headgate.errors.MessageTooLarge, match=r"100000000 bytes[\s\S]*16777216[\s\S]*hint: send a reference"
    ):
        stream.send("x" * 100_000_000)
    stream.send("still fine")


def test_a_large_message_among_small_ones(consumer: headgate.Consumer) -> None:
    """All or nothing. What compresses well counts with its full size."""
    stream = consumer.hg.stream("s")
    stream.alter(max_message_bytes=1000)
    with pytest.raises(headgate.errors.MessageTooLarge):
        stream.send_batch(["small", "x" * 1001, "small"])
    assert stream.info().messages == 0
    stream.send_batch(["x" * 1000] * 3)
    assert stream.info().messages == 3


def test_exists_in_sql(consumer: headgate.Consumer) -> None:
    """The SDK's create=True takes what is there; SQL says so."""
    for query, expected in (
        ("select headgate.create_stream('s')", headgate.errors.StreamExists),
        ("select headgate.create_consumer('s', 'c')", headgate.errors.ConsumerExists),
    ):
        with pytest.raises(expected, match="hint: "):
            consumer.hg.run(query, ())


def test_every_state_of_the_engine_has_a_class(url: str) -> None:
    with psycopg.connect(url) as db:
        rows = db.execute(
            "select distinct m[1] from pg_proc, regexp_matches(prosrc, 'HG[0-9]{3}', 'g') m "
            "where pronamespace = 'headgate'::regnamespace"
        )
        raised = {row[0] for row in rows} | set(re.findall("HG[0-9]{3}", schema.install_sql()))
    assert raised == {state for state in _BY_SQLSTATE if state.startswith("HG")}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("40001", headgate.errors.Conflict), ("40P01", headgate.errors.Conflict), ("55P03", headgate.errors.Conflict),
        ("57P01", headgate.errors.ConnectionFailed), ("53300", headgate.errors.ConnectionFailed),
        ("08006", headgate.errors.ConnectionFailed),
        ("25006", headgate.errors.DatabaseUnavailable), ("57014", headgate.errors.DatabaseUnavailable),
        ("53100", headgate.errors.DatabaseUnavailable), ("54000", headgate.errors.InvalidArgument),
        ("42501", headgate.errors.NotAllowed), ("3F000", headgate.errors.SchemaMissing),
        ("22P02", headgate.errors.InvalidArgument),
        ("22021", headgate.errors.InvalidText),
    ],
)  # fmt: skip
def test_states_of_postgresql(url: str, state: str, expected: type[headgate.Error]) -> None:
    with psycopg.connect(url) as db, pytest.raises(psycopg.Error) as caught:
        db.execute(f"do $$ begin raise exception 'so it is' using errcode = '{state}'; end $$")
    ours = from_database(caught.value)
    assert type(ours) is expected
    assert "so it is" in ours.message
    assert ours.hint


def test_errors_of_others_stay_theirs(consumer: headgate.Consumer) -> None:
    """A mistake in the user's own SQL is not turned into something of ours."""
    with pytest.raises(psycopg.errors.DivisionByZero):
        consumer.hg.run("select 1 / 0", ())
    assert from_database(ValueError("theirs")) is None
