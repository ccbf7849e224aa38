"""How fast changes of tables come into a stream: `python -m headgate.bench.tables`.

Source, stream and reader share a machine and a private PostgreSQL with fsync on, which is removed afterwards. What is
measured: how many row changes a second, in transactions of one row, of ten and of very many; how long from the commit
at the source until a consumer has the message, at 1,000 changes a second; how much memory the reader has at most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter, sleep, time
from typing import Any

import psycopg

from .. import Headgate, connect
from ..postgres.cluster import Cluster, postgres_bin

READER = """
import asyncio, sys, headgate
from headgate.replication.service import SourceReaders
async def main():
    async with await headgate.connect_async(sys.argv[1]) as hg:
        SourceReaders(hg.run, lambda: hg.url).start()
        await asyncio.Event().wait()
asyncio.run(main())
"""
FIRST = 10_000_000  # of the customers whose messages are timed
TABLE = (
    "create table orders (id bigint generated always as identity primary key, customer int, "
    "at timestamptz default now(), "
    "amount numeric default 12.50, note text default repeat('x', 60), tags text[] default '{a,b}', "
    "more jsonb default '{\"a\": 1}', done bool default false)"
)


@contextmanager
def server() -> Iterator[Cluster]:
    """A PostgreSQL of its own."""
    home = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    cluster = Cluster(postgres_bin(), home / "data", home / "run", settings={"wal_level": "logical"})
    cluster.init()
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)


class RowReader:
    """The process that reads, and the server beside it: memory, and processor time, which a busy machine does not
    change."""

    def __init__(self, pid: int, data: Path) -> None:
        self._pid = pid
        self._server = int((data / "postmaster.pid").read_text().split()[0])
        self.most = 0

    def look(self) -> int:
        """How much memory it has now: bytes."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        now = pages * os.sysconf("SC_PAGE_SIZE")
        self.most = max(self.most, now)
        return now

    def seconds(self) -> tuple[float, float]:
        """Of processor time: of the reader, and of all processes of the server, also those that ended."""
        parents, spent = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                words = path.read_text().rsplit(") ", 1)[1].split()
                pid = int(path.parent.name)
                parents[pid] = int(words[1])
                spent[pid] = [int(w) / os.sysconf("SC_CLK_TCK") for w in words[11:15]]
        server = sum(spent[self._server]) + sum(sum(spent[p][:2]) for p, of in parents.items() if of == self._server)
        return sum(spent[self._pid][:2]), server


def caught_up(hg: Headgate, db: psycopg.Connection[Any], reader: RowReader) -> None:
    """Waits until everything that is committed now is in the stream."""
    row = db.execute("select pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    query = "select %s::text::pg_lsn <= %s::text::pg_lsn"
    while True:
        reader.look()  # fails when it has ended
        done = db.execute(query, (row[0], hg.sources.postgres("bench").lsn)).fetchone()
        if done and done[0]:
            return
        sleep(0.02)


def throughput(
    hg: Headgate, url: str, db: psycopg.Connection[Any], reader: RowReader, rows: int, size: int
) -> dict[str, Any]:
    """Rows a second that come out of a backlog, in transactions of `size` rows."""
    hg.sources.pause("bench")
    with psycopg.connect(url) as writer:
        writer.execute("set synchronous_commit = off")
        for _ in range(max(1, rows // size)):
            writer.execute("insert into orders (customer) select generate_series(1, %s)", (size,))
            writer.commit()
    before, used, began = hg.sources.postgres("bench").messages, reader.seconds(), perf_counter()
    hg.sources.resume("bench")
    while hg.sources.postgres("bench").messages == before and perf_counter() - began < 60 and size < rows:
        sleep(0.01)
    began = began if size >= rows else perf_counter()
    caught_up(hg, db, reader)
    took = perf_counter() - began
    count = hg.sources.postgres("bench").messages - before
    own, all_else = (
        round((now - then) / max(count, 1) * 1e6) for now, then in zip(reader.seconds(), used, strict=True)
    )
    return {
        "rows a transaction": size,
        "rows": count,
        "rows/s": round(count / took),
        "processor time, µs/row": {"reader": own, "server": all_else},
    }


def latency(hg: Headgate, url: str, rate: int, seconds: float) -> dict[str, Any]:
    """Milliseconds from the end of a commit until a consumer has the message."""
    sent: dict[int, float] = {}
    took: list[float] = []
    done = threading.Event()
    consumer = hg.stream("changes").consumer("bench", create=True, start="end")
    consumer.receive(1, wait=0)

    def handle() -> None:
        while not done.is_set():
            found = consumer.receive(100, wait=0.5)
            at = time()
            for m in found:
                if (began := sent.get(m.data["record"]["customer"])) is not None:
                    took.append((at - began) * 1000)
            consumer.ack(found)

    thread = threading.Thread(target=handle)
    thread.start()
    began = monotonic()
    with psycopg.connect(url, autocommit=True) as writer:
        n = FIRST
        while (now := monotonic()) < began + seconds:
            due = list(range(n, min(FIRST + int((now - began) * rate), n + 10)))  # up to ten in a transaction
            if due:
                sent.update(dict.fromkeys(due, time()))  # (a message may be faster than the answer to the commit)
                writer.execute("insert into orders (customer) select unnest(%s::int[])", (due,))
                sent.update(dict.fromkeys(due, time()))
                n += len(due)
            else:
                sleep(0.001)
    sleep(2)
    done.set()
    thread.join()
    cuts = quantiles(took, n=100) if len(took) > 100 else [0.0] * 99
    return {
        "rate": round((n - FIRST) / seconds), "messages": len(took), "p50 ms": round(cuts[49], 1),
        "p95 ms": round(cuts[94], 1), "p99 ms": round(cuts[98], 1),
    }  # fmt: skip


def measure(rows: int, seconds: float, rate: int) -> dict[str, Any]:
    """Everything, in one run."""
    with server() as cluster, psycopg.connect(cluster.url(), autocommit=True) as db:
        db.execute("create database target")
        db.execute(TABLE)
        with connect(cluster.url("target"), migrate=True) as hg:
            hg.stream("changes", create=True)
            hg.sources.add_postgres("bench", "changes", url=cluster.url(), tables=["orders"])
            process = subprocess.Popen([sys.executable, "-c", READER, hg.url])
            try:
                reader = RowReader(process.pid, cluster.data_dir)
                db.execute("insert into orders (customer) values (0)")
                caught_up(hg, db, reader)
                at_first = reader.look()
                rates = [throughput(hg, cluster.url(), db, reader, rows, size) for size in (rows, 10, 1)]
                waits = latency(hg, cluster.url(), rate, seconds)
                reader.look()
            finally:
                process.kill()
                process.wait()
            hg.sources.remove_postgres("bench")
    return {
        "throughput": rates, "latency": waits, "load": os.getloadavg()[0],
        "reader MB": {"first": at_first // 1_000_000, "most": reader.most // 1_000_000},
    }  # fmt: skip


def main() -> int:
    """Prints what was measured, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m headgate.bench.tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each round (default: 100,000)")
    parser.add_argument("--seconds", type=float, default=10, help="of the round of latencies (default: 10)")
    parser.add_argument("--rate", type=int, default=1000, help="changes a second in it (default: 1,000)")
    args = parser.parse_args()
    print(json.dumps(measure(args.rows, args.seconds, args.rate), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
