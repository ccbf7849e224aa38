"""A database whose clock can be moved: its functions read the time through one of ours.

The offset is a sequence, which everybody sees at once, whatever their snapshots; it never moves a transaction's now().
"""

from __future__ import annotations

import psycopg

from headgate.database import schema

CLOCK = """
create sequence if not exists headgate.clock_offset minvalue 0 start 1000000;
select nextval('headgate.clock_offset');
create or replace function headgate.moved_clock() returns timestamptz language sql volatile as
$$ select pg_catalog.clock_timestamp() + (last_value - 1000000) * interval '1 millisecond'
     from headgate.clock_offset $$;
grant select on headgate.clock_offset to public;
"""


def install(db: psycopg.Connection) -> None:
    """Replace the functions by those that read the moved clock. Before there are streams, whose functions are made."""
    db.execute(CLOCK)
    db.execute(schema.functions_script().replace("clock_timestamp()", "headgate.moved_clock()").encode())


def jump(db: psycopg.Connection, seconds: float) -> float:
    """Move it so far from the true time; how far it is now."""
    db.execute("select setval('headgate.clock_offset', %s)", [1_000_000 + round(seconds * 1000)])
    return seconds
