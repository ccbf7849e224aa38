"""Transactions with a fixed snapshot, REPEATABLE READ and SERIALIZABLE: they see nothing that others commit later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

import headgate
from support.calls import Db, Received, ack, call, datas, drain, extend, nack, receive, send, send_batch, tick, value
from support.storage import create as create_small
from support.storage import end_segment, exists, maintain
from support.waiting import wait_until

S, C = "s", "c"


@pytest.fixture(params=["repeatable read", "serializable"])
def fixed(database_url: str, request: pytest.FixtureRequest) -> Iterator[Db]:
    """A session all of whose transactions have a fixed snapshot, a statement of its own too."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"set default_transaction_isolation = '{request.param}'")
        yield connection


def retried(db: Db, n: int = 10, acks: list[str] | None = None) -> list[Received]:
    """A receive, tried again as PostgreSQL asks."""
    while True:
        try:
            rows = db.execute("select * from headgate.receive(%s, %s, %s, null, %s)", (S, C, n, acks)).fetchall()
            return [Received(*row) for row in rows]
        except psycopg.errors.SerializationFailure:
            continue


@pytest.mark.parametrize("lane_by", ["hash", "key", "channel"])
@pytest.mark.parametrize("order", ["none", "key"])
def test_receiving_works(fixed: Db, lane_by: str, order: str) -> None:
    """E23: every session of this database has a fixed snapshot, by default_transaction_isolation."""
    call(fixed, "create_stream", S, lane_by=lane_by)
    call(fixed, "create_consumer", S, C, order=order)
    for round in range(3):
        names = [f"n{round}.{i}" for i in range(20)]
        send_batch(fixed, S, names, keys=names, **({"channels": names} if lane_by == "channel" else {}))
        found: list[str] = []

        def come(found: list[str] = found) -> bool:
            got = retried(fixed)
            found.extend(datas(got))
            ack(fixed, S, C, got)
            return len(found) >= 20

        wait_until(come, 10)
        assert sorted(found) == sorted(names)


def test_beside_others_each_message_comes_once(fixed: Db, database_url: str, db: Db) -> None:
    call(db, "create_stream", S, lanes=4)
    call(db, "create_consumer", S, C)
    seen: list[str] = []
    lock = threading.Lock()
    stop = threading.Event()
    isolation = value(fixed, "show default_transaction_isolation")

    def work(level: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as session:
            session.execute(f"set default_transaction_isolation = '{level}'")
            while not stop.is_set():
                got = retried(session, 7)
                while got:
                    with suppress(psycopg.errors.SerializationFailure):
                        ack(session, S, C, got)
                        break
                with lock:
                    seen.extend(datas(got))

    threads = [threading.Thread(target=work, args=(level,)) for level in ("read committed", isolation, isolation)]
    for thread in threads:
        thread.start()
    sent = []
    for i in range(40):
        batch = [f"m{i}.{j}" for j in range(10)]
        send_batch(db, S, batch)
        sent += batch
    wait_until(lambda: len(seen) >= len(sent))
    stop.set()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(sent)


def test_the_sdk_works_at_read_committed(fixed: Db, database_url: str) -> None:
    level = value(fixed, "show default_transaction_isolation")
    name = value(fixed, "select current_database()")
    fixed.execute(f"alter database {name} set default_transaction_isolation = '{level}'")
    with headgate.connect(database_url) as hg:
        stream = hg.stream(S, create=True)
        consumer = stream.consumer(C, create=True)
        stream.send("m")
        assert [m.data for m in consumer.receive(10, wait=5)] == ["m"]
        hg.maintain()
        with consumer.transaction() as (tx, _):
            assert tx.execute("show transaction_isolation").fetchone() == ("read committed",)


@pytest.mark.parametrize("settle", ["ack", "nack", "release", "extend"])
def test_a_delivery_out_of_sight_is_not_called_stale(db: Db, fixed: Db, settle: str) -> None:
    """E24: the ack_id is good, but its row was rewritten, or made, after the transaction began."""
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C)
    send(db, S, "m")
    arguments = {"extend": ["1 minute"]}.get(settle, [])
    places = ", ".join(["%s"] * (3 + len(arguments)))
    statement = f"select * from headgate.{settle}({places})"
    with pytest.raises(psycopg.errors.SerializationFailure), fixed.transaction():
        value(fixed, "select count(*) from headgate.stream")  # takes the snapshot
        got = receive(db, S, C)
        assert len(got) == 1
        fixed.execute(statement, [S, C, [got[0].ack_id], *arguments])
    with pytest.raises(psycopg.errors.SerializationFailure), fixed.transaction():
        value(fixed, "select count(*) from headgate.stream")
        with db.transaction():
            rows = db.execute("select array_agg(d)::text from headgate.delivery d").fetchone()
            db.execute("truncate headgate.delivery")
            db.execute("insert into headgate.delivery select (u).* from unnest(%s::headgate.delivery[]) u", rows)
        fixed.execute(statement, [S, C, [got[0].ack_id], *arguments])
    assert fixed.execute(statement, [S, C, [got[0].ack_id], *arguments]).fetchone() == (1, 0)
    assert fixed.execute(statement, [S, C, ["0.999999", *[got[0].ack_id][:0]], *arguments]).fetchone() == (0, 1)


@pytest.mark.parametrize("settle", ["nack", "whole ack", "expire"])
def test_what_was_acked_out_of_sight_is_not_handed_out_again(db: Db, fixed: Db, settle: str) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, ack_wait="200 milliseconds")
    send_batch(db, S, ["a", "b", "c"])
    got = receive(db, S, C)
    assert len(got) == 3
    with pytest.raises(psycopg.errors.SerializationFailure), fixed.transaction():
        value(fixed, "select count(*) from headgate.stream")
        assert ack(db, S, C, got[:1]) == (1, 0)
        if settle == "nack":
            nack(fixed, S, C, got)
        elif settle == "whole ack":
            ack(fixed, S, C, [got[0].delivery])
        else:
            wait_until(lambda: value(db, "select bool_and(deadline < clock_timestamp()) from headgate.delivery"))
            fixed.execute("select * from headgate.receive(%s, %s, 10)", (S, C)).fetchall()
    again: list[str] = []

    def come() -> bool:
        messages = receive(db, S, C)
        again.extend(datas(messages))
        ack(db, S, C, messages)
        return len(again) >= 2

    wait_until(come)
    assert sorted(again) == ["b", "c"]


def test_an_extension_of_what_is_left(db: Db, fixed: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    send_batch(db, S, ["a", "b"])
    got = receive(db, S, C)
    assert extend(fixed, S, C, got, "1 minute") == (2, 0)
    assert ack(fixed, S, C, got) == (2, 0)
    assert ack(fixed, S, C, got) == (0, 2)


@pytest.mark.parametrize(
    "statement",
    [
        "select headgate.seek('s', 'c', 'beginning')",
        "select headgate.redrive('s', 'c', '{1}')",
        "select headgate.compact('s')",
        "select * from headgate.maintain()",
        "select headgate.set_lanes('s', 3)",
        "select headgate.drop_consumer('s', 'c')",
    ],
)
def test_what_has_to_see_everything_refuses(db: Db, fixed: Db, statement: str) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, C)
    with pytest.raises(psycopg.Error) as error:
        fixed.execute(statement)
    assert error.value.sqlstate == "HG016"
    assert error.value.diag.message_hint == (
        "call it in a transaction of its own that starts with: begin isolation level read committed"
    )


def test_compaction_with_an_old_snapshot_removes_nothing(db: Db, fixed: Db) -> None:
    """E22: after another session's seek it removed what that one had still to read."""
    create_small(db, retain="until_acked")
    call(db, "create_consumer", S, C)
    send_batch(db, S, [f"m{i}" for i in range(100)])
    got = receive(db, S, C, 100)
    nack(db, S, C, got[:3], delay="1 hour")
    ack(db, S, C, got[3:])
    segment = end_segment(db)["id"]
    with pytest.raises(psycopg.Error), fixed.transaction():
        value(fixed, "select count(*) from headgate.cursor")
        call(db, "seek", S, C, "beginning")
        call(fixed, "compact", S)
    assert exists(db, segment)
    maintain(db)
    assert len(drain(db, S, C)) == 100


def test_a_tick_made_with_a_wrong_flag_hides_nothing(db: Db, database_url: str) -> None:
    """E2: open => false, said by a transaction that has an id already: its tick's bound would be too old."""
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    send(db, S, "first")
    tick(db, S)
    with psycopg.connect(database_url) as liar, psycopg.connect(database_url) as sender:
        value(liar, "select pg_current_xact_id()")
        value(sender, "select pg_current_xact_id()")
        call(sender, "send", S, "late")  # drawn before the tick, committed after it, with an id above the liar's
        call(db, "send", S, "second")
        liar.execute("select * from headgate.receive(%s, %s, 10, open => false)", (S, C)).fetchall()
        liar.commit()
        call(db, "send", S, "third")
        tick(db, S)
        seen = datas(receive(db, S, C))
        sender.commit()
        seen += drain(db, S, C)
    assert {"late", "third"} <= set(seen)


@pytest.mark.parametrize("lane_by", ["hash", "channel"])
@pytest.mark.parametrize("held", ["delivery", "tick"])
def test_a_wait_that_ends_early_can_be_repeated(db: Db, database_url: str, fixed: Db, lane_by: str, held: str) -> None:
    """A receive with a fixed snapshot waits for nobody longer than a moment. That it did is no raw error."""
    call(db, "create_stream", S, lane_by=lane_by)
    call(db, "create_consumer", S, C)
    send(db, S, "1")
    with psycopg.connect(database_url) as other:
        other.execute(f"lock table headgate.{held} in exclusive mode")
        with pytest.raises(psycopg.errors.SerializationFailure):
            fixed.execute("select * from headgate.receive(%s, %s, 1)", (S, C))
    assert [m.data for m in retried(fixed)] == ["1"]
