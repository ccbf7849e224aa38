"""One run of the benchmarks of the HTTP server."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headgate.errors import Error

from ..command import finish
from ..processes import Processes
from ..results import Run, machine, measure, own_versions
from ..server import server_for
from .load import work
from .measure import BENCHMARKS, FULL, QUICK, HttpBench, HttpPlan
from .page import HTTP_PAGE
from .replicas import replica


def http(
    args: argparse.Namespace,
    *,
    say: Callable[[Any], None],
    talk: Callable[[str], None],
    watch: Callable[[Sequence[str]], Iterable[str]],
) -> int:
    """Runs the benchmarks, writes what they found, and returns the exit code. `watch` shows how far they are."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise Error("the HTTP server is not installed", hint="pip install 'headgate[server]'") from error
    plan = (QUICK if args.quick else FULL).scaled(args.scale)
    return finish(args, lambda: run(watch(tuple(BENCHMARKS)), plan, database=args.database, talk=talk), say, talk,
                  HTTP_PAGE)  # fmt: skip


def run(names: Iterable[str], plan: HttpPlan, *, database: str | None, talk: Callable[[str], None]) -> Run:
    """Runs the benchmarks called `names`, on a temporary PostgreSQL or on databases of their own at `database`."""
    versions = own_versions() | {"uvicorn": version("uvicorn")}
    with ExitStack() as stack:
        server = stack.enter_context(server_for(database, pgmq=False))
        versions["postgresql"] = server.version
        described = machine(server.settings)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        clients, sdk = stack.enter_context(Processes(work)), stack.enter_context(Processes())
        first = stack.enter_context(replica(server.headgate_url, home))
        bench = HttpBench(server.headgate_url, plan, home, first, clients, sdk)
        results = measure(names, BENCHMARKS, bench, talk)
    return Run(described, versions, results)
