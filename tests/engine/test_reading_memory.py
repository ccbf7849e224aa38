"""What a task holds at once does not grow with what it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from support.calls import Db, call, value

READ = """
import resource, sys
from headgate.spark.database import batches
from headgate.lake.secrets import Secret

rows = sum(batch.num_rows for batch in batches(Secret(sys.argv[1]), sys.argv[2]))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory(db: Db, database_url: str) -> None:
    call(db, "create_stream", "s", lanes=2)
    db.execute(
        "insert into headgate.message_1 (xid, lane, key, data) "
        "select pg_current_xact_id(), i % 2, 'k', repeat('x', 400) from generate_series(1, 300000) i"
    )
    start = value(db, "select headgate.mark('s', 'beginning')")
    peaks = {}
    for most in (20_000, None):
        end = value(db, "select headgate.next_mark('s', %s, %s)", json.dumps(start), most)
        query = value(db, "select query from headgate.read_plan('s', %s, %s)", json.dumps(start), json.dumps(end))
        done = subprocess.run(
            [sys.executable, "-c", READ, database_url, query],
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        rows, peaks[most] = map(int, done.stdout.split())
        assert rows == (most or 300_000)
    assert peaks[None] < peaks[20_000] + 40_000, "kilobytes; all of it at once would be 120,000"
