"""What people look for: dead letters by what went wrong, what holds a key up, what a filter lets through."""

from __future__ import annotations

import pytest

from support.calls import Db, ack, call, nack, receive, send, send_batch, tick, value

S, C = "orders", "c"


@pytest.mark.parametrize(
    ("error", "group"),
    [
        (None, "no error was given"),
        ("  ", "no error was given"),
        ("timed out after 31.5 ms, 3 of 7", "timed out after <n> ms, <n> of <n>"),
        ('no "user 7" at 10:31', "no <text> at <n>"),
        ("order 3b241101-e2bb-4255-8caf-4136c566a962 is gone", "order <id> is gone"),
        ("cus_17 at 0xdeadbeef, commit 5d41402abc4b2a76", "<id> at <id>, commit <id>"),
        ("cannot feed the cafe", "cannot feed the cafe"),
        ("'a sentence in quotes that is the error itself'", "'a sentence in quotes that is the error itself'"),
        ("line one\n  line two", "line one line two"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_an_error_without_what_differs(db: Db, error: str | None, group: str) -> None:
    assert value(db, "select headgate.error_group(%s)", error) == group


@pytest.fixture
def dying(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, max_deliver=1)
    send_batch(db, S, [str(n) for n in range(6)])
    tick(db, S)
    for n, m in enumerate(receive(db, S, C, 6)):
        nack(db, S, C, [m], error=f"timeout after {n} ms" if n % 3 else "no such user")


def test_dead_letters_in_groups(db: Db, dying: None) -> None:
    found = db.execute("select error_group, letters, last_error, complete from headgate.dead_groups(%s, %s)", [S, C])
    assert found.fetchall() == [
        ("timeout after <n> ms", 4, "timeout after 5 ms", True),
        ("no such user", 2, "no such user", True),
    ]
    [two] = db.execute("select first_at < last_at from headgate.dead_groups(%s, %s) limit 1", [S, C]).fetchall()
    assert two == (True,)
    call(db, "create_consumer", S, "fresh")
    assert db.execute("select * from headgate.dead_groups(%s, 'fresh')", [S]).fetchall() == []


def test_the_letters_of_a_group_page_by_page(db: Db, dying: None) -> None:
    query = "select seq, data, source_seq from headgate.dead_of_group(%s, %s, 'timeout after <n> ms', 3, %s)"
    first = db.execute(query, [S, C, 0]).fetchall()
    assert [row[1] for row in first] == ["1", "2", "4"]
    [last] = db.execute(query, [S, C, first[-1][0]]).fetchall()
    assert last[1:] == ("5", 6)
    everything = db.execute("select * from headgate.dead_letters(%s, %s)", [S, C]).fetchall()
    group = db.execute("select * from headgate.dead_of_group(%s, %s, 'no such user')", [S, C]).fetchall()
    assert group == [row for row in everything if row[6] == "no such user"]


def test_what_holds_a_key_up(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C, order="key")
    for key in ("a", "b", "a", "a", "b"):
        send(db, S, "x", key=key)
    tick(db, S)
    query = "select seq, state, attempt, last_error from headgate.waiting_of_key(%s, %s, %s)"

    def waiting(key: str) -> list[tuple[object, ...]]:
        return db.execute(query, [S, C, key]).fetchall()

    assert waiting("a") == [(1, "available", 0, None), (3, "available", 0, None), (4, "available", 0, None)]
    [m] = receive(db, S, C, 1)
    assert waiting("a")[0] == (1, "delivered", 1, None)
    nack(db, S, C, [m], delay="1 hour", error="locked")
    assert waiting("a")[0] == (1, "parked", 1, "locked")
    ack(db, S, C, receive(db, S, C, 10))
    assert waiting("b") == []
    assert [row[:3] for row in waiting("a")] == [(1, "parked", 1), (3, "parked", 0), (4, "parked", 0)]
    assert waiting("none") == []


def test_more_than_is_looked_at(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    call(db, "create_consumer", S, C)
    for _ in range(6):
        send_batch(db, S, ["1"] * 10_000)
    send(db, S, "x", key="last")
    tick(db, S)
    [(seq, state)] = db.execute("select seq, state from headgate.waiting_of_key(%s, %s, 'last')", [S, C]).fetchall()
    assert state == "more"
    assert 20_000 < seq < 60_001


def test_a_filter_is_tried(db: Db) -> None:
    call(db, "create_stream", S, lanes=1)
    for n in range(8):
        send(db, S, "x", key=f"orders.{'eu' if n % 4 else 'us'}.{n}")
    send(db, S, "x")
    query = "select * from headgate.try_filter(%s, %s, %s)"
    [found] = db.execute(query, [S, ["orders.us.*"], 1000]).fetchall()
    assert found == (
        9, 2, ["orders.us.4", "orders.us.0"], [f"orders.eu.{n}" for n in (7, 6, 5, 3, 2, 1)],
    )  # fmt: skip
    [(looked, passed, _, _)] = db.execute(query, [S, ["orders.>"], 3]).fetchall()
    assert (looked, passed) == (3, 2)
