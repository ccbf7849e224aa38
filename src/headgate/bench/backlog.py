"""Making queues, and filling them inside the server: 10,000 messages a call, no matter which side."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

import headgate

from .plan import LANES
from .sides import Place, compact, messages

_CHUNK = 10_000
_FILL = {
    "headgate": b"select cardinality(headgate.send_batch(%s, array_fill(%s::text, array[%s])))",
    "pgmq": b"select count(*) from pgmq.send_batch(%s, array_fill(%s::jsonb, array[%s]))",
}
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


def create(place: Place, consumers: Sequence[str] = ("workers",)) -> None:
    """Makes the queue (and, in Headgate, its consumers)."""
    if place.kind == "headgate":
        with headgate.connect(place.url) as hg:
            stream = hg.stream(place.queue, create=True, lanes=LANES)
            for name in consumers:
                stream.consumer(name, create=True)
        return
    with psycopg.connect(place.url) as connection:
        if place.kind == "copy":
            connection.execute(_COPY_TABLE)
        else:
            connection.execute("select pgmq.create(%s)", [place.queue])
            if place.topic:
                connection.execute("select pgmq.bind_topic(%s, %s)", [place.topic, place.queue])


def drop(place: Place) -> None:
    """Removes what `create` made."""
    if place.kind == "headgate":
        with headgate.connect(place.url) as hg:
            hg.stream(place.queue).drop()
        return
    with psycopg.connect(place.url) as connection:
        if place.kind == "copy":
            connection.execute("drop schema bench cascade")
        else:
            if place.topic:
                connection.execute("select pgmq.unbind_topic(%s, %s)", [place.topic, place.queue])
            connection.execute("select pgmq.drop_queue(%s)", [place.queue])


def fill(place: Place, count: int, *, limit_seconds: float = 600) -> int:
    """Publishes `count` messages from two connections and returns how many there was time for."""
    if count <= 0:
        return 0
    deadline = time.monotonic() + limit_seconds
    lock = threading.Lock()
    left = count
    done = 0

    def publish() -> None:
        nonlocal left, done
        query = _FILL["headgate" if place.kind == "headgate" else "pgmq"]
        with psycopg.connect(place.url, autocommit=True) as connection:
            while time.monotonic() < deadline:
                with lock:
                    n = min(left, _CHUNK)
                    left -= n
                if n == 0:
                    return
                connection.execute(query, [place.queue, compact(messages(1)[0]), n])
                with lock:
                    done += n

    with ThreadPoolExecutor(2) as threads:
        for publisher in [threads.submit(publish) for _ in range(2)]:
            publisher.result()
    analyze(place)
    return done


def analyze(place: Place) -> None:
    """What autovacuum would soon do: without statistics pgmq's reads may get a bad plan."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        if place.kind == "headgate":
            row = connection.execute("select id from headgate.stream where name = %s", [place.queue]).fetchone()
            table = sql.Identifier("headgate", f"message_{row[0] if row else 0}")
        else:
            table = sql.Identifier("pgmq", f"q_{place.queue}")
        connection.execute(sql.SQL("analyze {}").format(table))
