"""Runs benchmarks by name."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version

import psycopg

from headgate import __version__

from .bench import Bench
from .crew import Crew
from .endurance import deep_backlog, pinned_snapshot
from .fanout import fanout
from .lanes import active_channels, channels, idle_lanes, key_lanes
from .latency import latency
from .looking import looking, many_streams
from .plan import Plan
from .results import Result, Run, machine
from .server import databases_on, pgmq_version, temporary_server
from .throughput import by_sql, consume, publish

BENCHMARKS: dict[str, Callable[[Bench], list[Result]]] = {
    "publish": publish,
    "consume": consume,
    "sql": by_sql,
    "fanout": fanout,
    "latency": latency,
    "backlog": deep_backlog,
    "pinned": pinned_snapshot,
    "channels": channels,
    "idle": idle_lanes,
    "active": active_channels,
    "keys": key_lanes,
    "looking": looking,
    "streams": many_streams,
}


def run(
    names: Iterable[str], plan: Plan, *, database: str | None, only_headgate: bool, talk: Callable[[str], None]
) -> Run:
    """Runs the benchmarks called `names`, on a temporary server or on databases of their own at `database`."""
    versions = {"headgate": __version__, "psycopg": psycopg.__version__, "python": platform.python_version()}
    if not only_headgate:
        versions["pgmq"] = pgmq_version()
        versions["pgmq client"] = version("pgmq")
    pgmq = not only_headgate
    place = databases_on(database, pgmq=pgmq) if database else temporary_server(pgmq=pgmq)
    results: list[Result] = []
    with place as server, Crew() as crew:
        versions["postgresql"] = server.version
        described = machine(server.settings)
        bench = Bench(server, plan, crew, talk)
        for name in names:
            start = time.monotonic()
            results += BENCHMARKS[name](bench)
            talk(f"{name}: {time.monotonic() - start:.0f} s")
    return Run(described, versions, results)
