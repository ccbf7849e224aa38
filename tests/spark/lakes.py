"""What the tests of pipelines have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

import headgate
from headgate.pipeline import parse
from headgate.pipeline.run import Progress, run

Row = tuple[str | None, str, str | None]

FILL = """
select headgate.send_batch('orders',
  array_agg('{"n": ' || g || ', "text": "ä\u2028 ' || repeat('x', g %% 50) || '"}' order by g),
  array_agg(case when g %% 7 > 0 then 'orders.' || g %% 5 || '.k' end order by g),
  array_agg(case when g %% 3 > 0 then jsonb_build_object('n', g, 'unit', 'µ') end order by g))
from generate_series(%s::int, %s::int) g
"""


def fill(hg: headgate.Headgate, first: int, last: int) -> None:
    """Sends messages with keys and headers, and some without."""
    hg.run(FILL, (first, last))


def go(hg: headgate.Headgate, spark: Any, directory: Path, text: str, **options: Any) -> list[Progress]:
    """Runs a pipeline; returns what it said."""
    said: list[Progress] = []
    pipeline = parse(text)
    run(pipeline, hg, spark, say=said.append, directory=directory / f"state-{pipeline.name}", **options)
    return said


def messages(hg: headgate.Headgate, stream: str) -> list[Row]:
    """Keys, data and headers of a stream, in order."""
    found = hg.run("select key, data, headers::text from headgate.messages(%s, max => 10000000)", (stream,))
    return [(row[0], row[1], row[2]) for row in found]


def digest(found: Iterable[Row]) -> tuple[int, str]:
    """How many rows there are, and a hash of them in their order: for more than one wants to hold at once."""
    count, made = 0, hashlib.sha256()
    for row in found:
        made.update(repr(row).encode())
        count += 1
    return count, made.hexdigest()


def in_pages(hg: headgate.Headgate, stream: str) -> Iterator[Row]:
    """The same as messages(), a page at a time."""
    after = 0
    query = "select seq, key, data, headers::text from headgate.messages(%s, max => 50000, after => %s)"
    while found := hg.run(query, (stream, after)):
        yield from ((row[1], row[2], row[3]) for row in found)
        after = found[-1][0]


def rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a Delta table, as another reader sees them."""
    return pa.table(DeltaTable(str(path)).to_pyarrow_table(columns=list(columns))).to_pylist()
