"""What an adversary broke in the powers over single messages, and what stands: each by plain SQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import psycopg
import pytest

from support.calls import Db, ack, call, receive, send_batch, value

S, C = "s", "c"
KINDS = ("hash", "key", "channel")

# what one session asks of one stream after the other
ASKED = (
    "headgate.discard(%(s)s, 'c', array[9])",
    "headgate.discard(%(s)s, 'c', filter => array['nothing.>'])",
    "headgate.receive(%(s)s, 'c', 3)",
    "headgate.receive(%(s)s, 'o', 3)",
    "headgate.replay(%(s)s, 'c', from_seq => 1)",
    "headgate.retry_now(%(s)s, 'c', array[1, 2, 3])",
    "headgate.message_life(%(s)s, 1)",
    "headgate.message_life(%(s)s, 9)",
    "headgate.message_states(%(s)s, 1)",
    "headgate.attempts(%(s)s)",
    "headgate.peek(%(s)s, 'c')",
    "headgate.peek(%(s)s, 'o', states => array['done', 'parked', 'discarded'])",
    "headgate.channel_backlog(%(s)s, 'c')",
    "headgate.messages(%(s)s)",
    "headgate.dead_letters(%(s)s, 'c')",
    "headgate.redrive(%(s)s, 'c', \"all\" => true)",
    "headgate.seek(%(s)s, 'o', 'beginning')",
    "headgate.compact(%(s)s)",
)


@pytest.fixture
def other(database_url: str) -> Iterator[Db]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("kinds", list(itertools.permutations(KINDS)), ids="-".join)
def test_a_session_asks_the_same_of_streams_of_every_kind(db: Db, kinds: tuple[str, ...]) -> None:
    """Their columns differ in type, and a session keeps plans: message_life failed with 42804."""
    for kind in kinds:
        call(db, "create_stream", kind, lane_by=kind)
        call(db, "create_consumer", kind, C)
        call(db, "create_consumer", kind, "o", order="key", max_deliver=1)
        channels = {"channels": ["a", "b"] * 5} if kind == "channel" else {}
        send_batch(db, kind, ["x"] * 10, keys=[f"k.{n % 3}" for n in range(10)], **channels)
    for query in ASKED:
        for kind in kinds:
            db.execute(f"select * from {query}", {"s": kind}).fetchall()
    db.execute("select * from headgate.consumers").fetchall()
    db.execute("select * from headgate.doctor()").fetchall()


@pytest.mark.parametrize(
    "call_",
    [
        "headgate.redrive('s', 'c', max => -1)",
        "headgate.purge_dead('s', 'c', max => -1)",
        "headgate.dead_letters('s', 'c', -1)",
        "headgate.messages('s', -1)",
        "headgate.peek('s', 'c', -1)",
        "headgate.attempts('s', max => -1)",
        "headgate.message_life('s', null)",
    ],
)
def test_absurd_numbers_get_an_error_with_a_hint(db: Db, call_: str) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C, max_deliver=1)
    send_batch(db, S, ["x"])
    (m,) = receive(db, S, C, 1)
    db.execute("select headgate.nack('s', 'c', array[%s])", [m.ack_id])  # there is a dead letter
    with pytest.raises(psycopg.Error) as raised:
        db.execute(f"select * from {call_}")
    assert (raised.value.sqlstate, bool(raised.value.diag.message_hint)) == ("HG010", True)


@pytest.mark.parametrize(
    "power",
    [
        "headgate.discard('s', 'c', array[1, 50])",
        "headgate.replay('s', 'c', array[3])",
        "headgate.retry_now('s', 'c', \"all\" => true)",
        "headgate.extend('s', 'c', array[%(a)s], '0')",
        "headgate.ack('s', 'c', array[%(a)s])",
    ],
)
@pytest.mark.parametrize("lane_by", KINDS)
def test_an_open_transaction_with_a_power_stops_nobody(db: Db, other: Db, lane_by: str, power: str) -> None:
    """Others receive, look, maintain and give up other messages beside it; rolled back, it was never there."""
    call(db, "create_stream", S, lane_by=lane_by)
    call(db, "create_consumer", S, C)
    channels = {"channels": [f"t{n % 3}" for n in range(60)]} if lane_by == "channel" else {}
    send_batch(db, S, ["x"] * 60, keys=[f"k{n % 7}" for n in range(60)], **channels)
    held = []
    while len(held) < 6:
        held += receive(db, S, C, 6)
    ack(db, S, C, [m for m in held if m.seq == 3])
    before = value(db, "select lag from headgate.consumers")
    other.execute("begin")
    other.execute("select pg_current_xact_id()")
    other.execute(f"select * from {power}", {"a": held[0].ack_id})
    got = receive(db, S, C, 5)
    assert 0 < len(got) <= 5
    ack(db, S, C, got)
    for query in ("peek('s', 'c')", "message_life('s', 1)", "maintain()", "compact('s')"):
        db.execute(f"select * from headgate.{query}").fetchall()
    other.execute("rollback")
    assert value(db, "select lag from headgate.consumers") == before - len(got)
