"""Processes that read sources, and what came of it: for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

import headgate
from support.calls import value
from support.waiting import wait_until as wait_for

Db = psycopg.Connection[Any]

READ = """
import asyncio, logging, sys
logging.basicConfig(level=logging.INFO)
import headgate
from headgate.replication import feed, reader, service, watching
from headgate.service import Pace
reader.KEEP_EVERY, reader.LEASE, service.LOOK_EVERY, service.RETRY = 0.2, 3.0, 0.1, Pace(0.1, 1.0)
reader.TABLES_EVERY, watching.WATCH_EVERY = 1.0, 0.3
feed.TELL_EVERY = 0.2
async def main():
    async with await headgate.connect_async(sys.argv[1]) as hg:
        readers = service.SourceReaders(hg.run, lambda: hg.url)
        readers.start()
        await asyncio.Event().wait()
asyncio.run(main())
"""


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for something that another process does, on a machine that may do much else."""
    wait_for(condition, timeout=180)


class Reading:
    """A process that reads the sources of a database."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", READ, url])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def connected(url: str) -> Iterator[Db]:
    with psycopg.connect(url, autocommit=True) as db:
        yield db


def messages(db: Db, stream: str = "changes") -> list[dict[str, Any]]:
    rows = db.execute("select seq, key, data from headgate.messages(%s, 1000000)", (stream,)).fetchall()
    return [{"seq": seq, "key": key, **json.loads(data)} for seq, key, data in sorted(rows)]


def rebuilt(found: list[dict[str, Any]], table: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table with the primary key id, from its messages alone."""
    rows: dict[Any, dict[str, Any]] = {}
    for m in found:
        if m["metadata"]["table"] != table:
            continue
        if m["action"] == "truncate":
            rows.clear()
        elif m["action"] == "delete":
            del rows[m["record"]["id"]]
        else:
            assert m["action"] != "insert" or m["record"]["id"] not in rows, "inserted twice"
            assert m["action"] != "update" or m["record"]["id"] in rows, "updated before it was there"
            rows[m["record"]["id"]] = m["record"]
    return rows


def caught_up(hg: headgate.Headgate, source: Db, name: str = "shop") -> None:
    """Waits until everything that is committed now is in the stream."""
    end = value(source, "select pg_current_wal_lsn()::text")
    try:
        wait_until(lambda: value(source, "select %s::pg_lsn <= %s::pg_lsn", end, hg.sources.postgres(name).lsn))
    except AssertionError:
        raise AssertionError(f"{hg.sources.postgres(name)} did not reach {end}") from None
