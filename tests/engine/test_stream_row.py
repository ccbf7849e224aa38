"""While an open transaction holds the row of a stream (set_lanes) or of a consumer, nobody waits for its end."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from support.calls import Db, call, drain, send, value
from support.waiting import wait_until

S = "s"


@pytest.fixture
def changer(db: Db, database_url: str) -> Iterator[Db]:
    """A transaction that has changed the lanes of the stream, and is open."""
    call(db, "create_stream", S, segment_rows=1000)
    call(db, "create_consumer", S, "c")
    with psycopg.connect(database_url) as changer:
        call(changer, "set_lanes", S, 8)
        db.execute("set statement_timeout = '15s'")
        yield changer


WAITING: dict[str, tuple[object, ...]] = {
    "stage": (S, "writer", 1),
    "send_staged": (S, "writer", 1, [], []),
    "note_archive": (S, "lake", "place", {"tick": 0, "snap": "3:3:", "lo": 0, "hi": 0, "floor": 0}),
    "create_consumer": (S, "d"),
    "create_source": ("hook", S, "webhook", "none"),
    "make_room": (S, 1_000_000),
}


@pytest.mark.parametrize("function", WAITING)
def test_what_refers_to_the_stream(db: Db, changer: Db, function: str) -> None:
    with pytest.raises(errors.LockNotAvailable, match='stream "s"') as refused:
        call(db, function, *WAITING[function])
    assert "repeat the call" in str(refused.value.diag.message_hint)
    changer.commit()
    call(db, function, *WAITING[function])


def test_a_send_without_room(db: Db, changer: Db) -> None:
    assert send(db, S, "1") == [1]  # there is room: it waits for nothing
    end = "(select max(end_seq) from headgate.segment)"
    value(db, f"select setval('headgate.seq_' || (select id from headgate.stream), {end} - 10)")
    send(db, S, "2")  # there is little: it does not make more
    value(db, f"select setval('headgate.seq_' || (select id from headgate.stream), {end} + 10)")
    with pytest.raises(errors.LockNotAvailable, match="changes the stream") as refused:
        send(db, S, "3")
    assert "repeat the call" in str(refused.value.diag.message_hint)
    changer.commit()
    send(db, S, "3")
    seen: list[str] = []

    def has_all() -> bool:
        seen.extend(drain(db, S, "c"))
        return len(seen) >= 3

    wait_until(has_all)  # many empty segments lie between
    assert seen == ["1", "2", "3"]


@pytest.mark.parametrize("function", ["alter_consumer", "pause", "resume", "drop_consumer"])
def test_a_consumer_that_is_being_changed(db: Db, database_url: str, function: str) -> None:
    call(db, "create_stream", S)
    call(db, "create_consumer", S, "c")
    with psycopg.connect(database_url) as changer:
        call(changer, "alter_consumer", S, "c", ack_wait="10 seconds")
        with pytest.raises(errors.LockNotAvailable, match='consumer "c"') as refused:
            call(db, function, S, "c")
        assert "repeat the call" in str(refused.value.diag.message_hint)
    call(db, function, S, "c")
