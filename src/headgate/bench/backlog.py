"""Making queues, and filling them inside the server: 10,000 messages a call, no matter which contender."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

import headgate
from headgate.database.encoding import dump_json

from .contenders import Queue, messages
from .plan import LANES

_CHUNK = 10_000
_FILL = {  # by contender, and what its lanes are named by
    ("headgate", None): b"select headgate.send_batch(%(queue)s, array_fill(%(data)s::text, array[%(n)s]))",
    ("headgate", "channel"): b"""
        select headgate.send_batch(%(queue)s, array_fill(%(data)s::text, array[%(n)s]), channels => array(
          select 'name ' || mod(%(start)s::bigint + i, %(names)s) from generate_series(1, %(n)s) i),
          keys => case when %(keys)s::bigint > 0 then array(
            select 'key ' || mod(%(start)s::bigint + i, %(names)s * %(keys)s::bigint)
              from generate_series(1, %(n)s) i) end)""",
    ("headgate", "key"): b"""
        select headgate.send_batch(%(queue)s, array_fill(%(data)s::text, array[%(n)s]), keys => array(
          select 'name ' || mod(%(start)s::bigint + i, %(names)s) from generate_series(1, %(n)s) i))""",
    ("pgmq", None): b"select count(*) from pgmq.send_batch(%(queue)s, array_fill(%(data)s::jsonb, array[%(n)s]))",
    ("pgmq", "key"): b"""
        select count(*) from pgmq.send_batch(%(queue)s, array_fill(%(data)s::jsonb, array[%(n)s]), array(
          select jsonb_build_object('x-pgmq-group', 'name ' || mod(%(start)s::bigint + i, %(names)s))
            from generate_series(1, %(n)s) i))""",
}
# pgmq's own create_fifo_index makes one that its grouped reads cannot use. Without this one, which they can, they
# compare every group with every message.
_GROUP_INDEX = "create index on {} ((coalesce(headers->>'x-pgmq-group', '_default_fifo_group')), msg_id)"
_COPY_TABLE = b"""
create schema bench;
create sequence bench.seq;
create table bench.message (
  seq bigint not null default nextval('bench.seq'), xid xid8 not null default pg_current_xact_id(), lane int not null,
  key text, data text not null, headers jsonb, deliver_at timestamptz,
  created_at timestamptz not null default clock_timestamp());
create unique index on bench.message (seq);
create index on bench.message (lane, seq);
create index on bench.message using brin (created_at) with (pages_per_range = 32, autosummarize = on);
"""


def create(queue: Queue, consumers: Sequence[str] = ("workers",)) -> None:
    """Makes the queue (and, in Headgate, its consumers)."""
    if queue.kind == "headgate":
        with headgate.connect(queue.url) as hg:
            if queue.lanes is None:
                stream = hg.stream(queue.name, create=True, lanes=LANES)
            else:
                stream = hg.stream(queue.name, create=True, lane_by=queue.lanes.by)
            for name in consumers:
                stream.consumer(
                    name, create=True,
                    order="key" if queue.lanes and (queue.lanes.by == "key" or queue.lanes.keys) else "none",
                    max_concurrency=queue.lanes.max_concurrency if queue.lanes else None,
                )  # fmt: skip
        return
    with psycopg.connect(queue.url) as connection:
        if queue.kind == "copy":
            connection.execute(_COPY_TABLE)
        else:
            connection.execute("select pgmq.create(%s)", [queue.name])
            if queue.lanes:
                connection.execute(sql.SQL(_GROUP_INDEX).format(sql.Identifier("pgmq", f"q_{queue.name}")))
            if queue.topic:
                connection.execute("select pgmq.bind_topic(%s, %s)", [queue.topic, queue.name])


def drop(queue: Queue) -> None:
    """Removes what `create` made."""
    if queue.kind == "headgate":
        with headgate.connect(queue.url) as hg:
            hg.stream(queue.name).drop()
        return
    with psycopg.connect(queue.url) as connection:
        if queue.kind == "copy":
            connection.execute("drop schema bench cascade")
        else:
            if queue.topic:
                connection.execute("select pgmq.unbind_topic(%s, %s)", [queue.topic, queue.name])
            connection.execute("select pgmq.drop_queue(%s)", [queue.name])


def fill(queue: Queue, count: int, *, start: int = 0, limit_seconds: float = 600) -> int:
    """Publishes `count` messages from two connections and returns how many there was time for.

    They go to the queue's named lanes in turn, as if they were those from `start` on.
    """
    if count <= 0:
        return 0
    deadline = time.monotonic() + limit_seconds
    lock = threading.Lock()
    left, done = count, 0

    def publish() -> None:
        nonlocal left, done
        lanes = queue.lanes
        query = _FILL["headgate" if queue.kind == "headgate" else "pgmq", lanes.by if lanes else None]
        params = {"queue": queue.name, "data": dump_json(messages(1)[0]), "names": lanes.count if lanes else 1,
                  "keys": (lanes.keys or 0) if lanes else 0}  # fmt: skip
        with psycopg.connect(queue.url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                with lock:
                    n = min(left, _CHUNK)
                    at = start + count - left
                    left -= n
                if n == 0:
                    return
                connection.execute(query, {**params, "n": n, "start": at})
                with lock:
                    done += n

    with ThreadPoolExecutor(2) as threads:
        for publisher in [threads.submit(publish) for _ in range(2)]:
            publisher.result()
    analyze(queue)
    return done


def analyze(queue: Queue) -> None:
    """What autovacuum would soon do: without statistics pgmq's reads may get a bad plan."""
    with psycopg.connect(queue.url, autocommit=True) as connection:
        if queue.kind == "headgate":
            row = connection.execute("select id from headgate.stream where name = %s", [queue.name]).fetchone()
            table = sql.Identifier("headgate", f"message_{row[0] if row else 0}")
        else:
            table = sql.Identifier("pgmq", f"q_{queue.name}")
        connection.execute(sql.SQL("analyze {}").format(table))


def tidy(queue: Queue) -> None:
    """What maintenance and autovacuum do within a minute after a burst."""
    with headgate.connect(queue.url) as hg:
        hg.maintain()
    with psycopg.connect(queue.url, autocommit=True) as connection:
        connection.execute("vacuum (analyze) headgate.cursor, headgate.delivery, headgate.wake")
