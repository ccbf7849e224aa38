"""Segments, as the tests of retention and compaction use them."""

from __future__ import annotations

from typing import Any

from support.calls import Db, call, record, tick, value
from support.waiting import wait_until


def create(db: Db, stream: str = "s", **settings: object) -> str:
    """A stream whose segments end as soon as maintenance sees them."""
    call(db, "create_stream", stream, **{"lanes": 2, "segment_rows": 10_000, "segment_age": "1 microsecond"} | settings)
    return stream


def maintain(db: Db) -> dict[str, int]:
    """One call; what was done, by task."""
    done: dict[str, int] = {}
    for task, _, n in db.execute("select task, subject, done from headgate.maintain()"):
        done[task] = done.get(task, 0) + n
    return done


def end_segment(db: Db, stream: str = "s") -> dict[str, Any]:
    """Ends and closes the segment that is being written, removing nothing; its row in the view."""
    id = value(
        db,
        "select g.id from headgate.segment g where g.stream = (headgate.find_stream(%s)).id "
        "and headgate.last_seq(g.stream) between g.first_seq and g.end_seq - 1",
        stream,
    )

    def is_closed() -> bool:
        tick(db, stream)
        db.execute("select headgate.prepare_storage()")
        return bool(segment(db, id, stream)["state"] != "open")  # it may have been removed by now

    wait_until(is_closed)
    return segment(db, id, stream)


def segment(db: Db, id: int, stream: str = "s") -> dict[str, Any]:
    return record(db, "select * from headgate.segments where stream = %s and id = %s", stream, id)


def exists(db: Db, id: int, stream: str = "s") -> bool:
    """Whether a segment still has messages."""
    return bool(
        value(
            db,
            "select count(*) from headgate.segments where stream = %s and id = %s and state <> 'dropped'",
            stream,
            id,
        )
    )


def remove(db: Db, *segments: int) -> None:
    """Empties these segments as maintenance does, whose search for superseded versions is elsewhere at this moment."""

    def is_done() -> bool:
        db.execute("select headgate.free_storage()")
        return not any(exists(db, s) for s in segments)

    wait_until(is_done)


def lost(db: Db, consumer: str = "c", stream: str = "s") -> int:
    return int(value(db, "select lost from headgate.consumers where stream = %s and name = %s", stream, consumer))
