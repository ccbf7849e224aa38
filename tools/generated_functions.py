"""Prints the functions that are generated for a stream of each kind, to compare two versions of the engine.

`python tools/generated_functions.py > before` and, after a change that should change nothing, `diff before <(…)`.
Comments and white space are left out: a change of form shows no difference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import psycopg

from headgate.database import schema
from headgate.postgres.cluster import Cluster, postgres_bin
from headgate.torture.environment.server import running, temporary_home

KINDS = {
    f"{lane_by}{' upsert' if upsert else ''}": (lane_by, upsert)
    for lane_by in ("hash", "key", "channel")
    for upsert in (False, True)
}
GENERATED = (
    "select p.proname, pg_get_functiondef(p.oid) from pg_proc p "
    "where p.pronamespace = 'headgate'::regnamespace and p.proname = any(headgate.stream_functions(%s)) order by 1"
)
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\w+|\S")


def plain(source: str) -> str:
    """The source with its comments gone, a clause or so a line, and one blank between two words."""
    words = " ".join(word for word in _TOKEN.findall(source) if not word.startswith("--"))
    return re.sub(r" (?=(?:select|from|where|and|or|then|else|if|loop|with|order|begin|end|;)\b)", "\n", words)


def functions(db: psycopg.Connection) -> Iterator[tuple[str, str, str]]:
    """Kind of stream, name without the stream's number, and plain source of each."""
    for kind, (lane_by, upsert) in KINDS.items():
        made = db.execute(
            "select headgate.create_stream(%s, lane_by => %s, one_message_per_key => %s)",
            [kind.replace(" ", "-"), lane_by, upsert],
        ).fetchone()
        assert made
        (number,) = made
        for name, source in db.execute(GENERATED, [number]):
            yield kind, name.removesuffix(f"_{number}"), plain(source.replace(f"_{number}", "_{stream}"))


def main() -> int:
    """Make a server for a moment, and a stream of each kind in it."""
    with (
        temporary_home() as home,
        running(Cluster(postgres_bin(), home / "data", home / "run")) as cluster,
        psycopg.connect(cluster.url()) as db,
    ):
        db.execute(schema.install_sql())
        for kind, name, source in functions(db):
            print(f"=== {kind}: {name}\n{source}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
