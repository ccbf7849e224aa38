"""Retention and compaction where lanes are named or have changed."""

from __future__ import annotations

import pytest

from support.calls import Db, ack, call, column, nack, receive, record, value
from support.storage import maintain

S, C = "jobs", "c"


def fill(db: Db, n: int, named: bool, first: int = 0) -> None:
    """Messages of ten channels (and keys)."""
    names = [f"t{i % 10}" for i in range(first, first + n)]
    datas = [str(i) for i in range(first, first + n)]
    call(db, "send_batch", S, datas, names, channels=names if named else None)


def read(db: Db, n: int, consumer: str = C) -> list[str]:
    """Receives and acks up to n messages."""
    found: list[str] = []
    while len(found) < n and (batch := receive(db, S, consumer, min(100, n - len(found)))):
        found += [m.data for m in batch]
        ack(db, S, consumer, batch)
    return found


def live(db: Db) -> list[int]:
    return column(db, "select id from headgate.segments where state <> 'dropped' and messages > 0 order by id")


@pytest.fixture(params=["channel", "key"])
def jobs(request: pytest.FixtureRequest, db: Db) -> tuple[Db, bool]:
    call(db, "create_stream", S, lane_by=request.param, retain="until_acked", segment_rows=1000)
    call(db, "create_consumer", S, C)
    return db, request.param == "channel"


def test_what_every_consumer_has_acked_goes(jobs: tuple[Db, bool]) -> None:
    db, named = jobs
    call(db, "create_consumer", S, "slow")
    fill(db, 2500, named)
    assert len(read(db, 2500)) == 2500
    maintain(db)
    assert live(db) == [1, 2], "the slow one has still to come to them"
    assert len(read(db, 2500, "slow")) == 2500
    maintain(db)
    assert live(db) == []
    fill(db, 10, named, 2500)
    assert len(read(db, 10)) == len(read(db, 10, "slow")) == 10


def test_new_messages_of_an_idle_lane_are_not_removed(jobs: tuple[Db, bool]) -> None:
    db, named = jobs
    fill(db, 10, named)
    assert len(read(db, 10)) == 10
    fill(db, 2990, named, 10)
    maintain(db)
    assert len(read(db, 3000)) == 2990


def test_parked_messages_outlive_their_segment(jobs: tuple[Db, bool]) -> None:
    db, named = jobs
    fill(db, 5, named)
    failed = receive(db, S, C, 5)
    nack(db, S, C, failed, "1 hour", "not yet")
    fill(db, 2500, named, 5)
    assert len(read(db, 2500)) == 2500
    maintain(db)
    call(db, "compact", S)
    assert live(db) == []
    assert call(db, "retry_now", S, C, all=True) == 5
    again = receive(db, S, C, 10)
    assert sorted((m.data, m.attempt, m.channel) for m in again) == sorted((m.data, 2, m.channel) for m in failed), (
        "with their channel"
    )
    nack(db, S, C, again, "0 seconds")
    assert sorted(read(db, 5)) == ["0", "1", "2", "3", "4"]


def test_what_is_removed_unread_is_counted(db: Db) -> None:
    call(db, "create_stream", S, lane_by="channel", retain_up_to="1 hour", segment_rows=1000)
    call(db, "create_consumer", S, C)
    call(db, "create_consumer", S, "never")
    fill(db, 2000, True)
    assert len(read(db, 700)) == 700
    tables = column(
        db, "select inhrelid::regclass::text from pg_inherits where inhparent = 'headgate.message_1'::regclass"
    )
    for table in tables:
        db.execute(f"update {table} set created_at = created_at - interval '2 hours'")
    maintain(db)
    lost = dict(db.execute("select name, lost from headgate.consumers").fetchall())
    assert lost == {C: 1300, "never": 2000}
    fill(db, 3, True, 2000)
    assert sorted(read(db, 10)) == sorted(read(db, 10, "never")) == ["2000", "2001", "2002"]
    assert record(db, "select lag from headgate.consumers where name = 'never'")["lag"] == 0


def test_lanes_that_changed(db: Db) -> None:
    call(db, "create_stream", S, lanes=4, retain="until_acked", segment_rows=1000)
    call(db, "create_consumer", S, C, order="key")
    fill(db, 1200, False)
    call(db, "set_lanes", S, 7)
    fill(db, 1200, False, 1200)
    call(db, "set_lanes", S, 2)
    fill(db, 1200, False, 2400)
    assert len(read(db, 3600)) == 3600
    maintain(db)
    maintain(db)
    assert live(db) == []
    assert value(db, "select count(*) from headgate.cursor") == 2, "the lanes of now"
