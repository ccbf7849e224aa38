"""Runs benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import version

from .bench import Bench
from .endurance import deep_backlog, pinned_snapshot
from .fanout import fanout
from .lanes import active_channels, channels, idle_lanes, key_lanes
from .latency import latency
from .looking import looking, many_streams
from .plan import BenchPlan
from .processes import Processes
from .results import Result, Run, machine, measure, own_versions
from .server import pgmq_version, server_for
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
    names: Iterable[str], plan: BenchPlan, *, database: str | None, only_headgate: bool, talk: Callable[[str], None]
) -> Run:
    """Runs the benchmarks called `names`, on a temporary server or on databases of their own at `database`."""
    versions = own_versions()
    if not only_headgate:
        versions["pgmq"] = pgmq_version()
        versions["pgmq client"] = version("pgmq")
    with server_for(database, pgmq=not only_headgate) as server, Processes() as processes:
        versions["postgresql"] = server.version
        described = machine(server.settings)
        bench = Bench(server, plan, processes, talk)
        results = measure(names, BENCHMARKS, bench, talk)
    return Run(described, versions, results)
