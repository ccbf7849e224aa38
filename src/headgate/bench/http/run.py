"""One run of the benchmarks of the HTTP server."""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from headgate import __version__
from headgate.errors import Error

from ..command import finish
from ..crew import Crew
from ..results import Result, Run, machine
from ..server import databases_on, temporary_server
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
    versions = {
        "headgate": __version__, "psycopg": psycopg.__version__, "python": platform.python_version(),
        "uvicorn": version("uvicorn"),
    }  # fmt: skip
    results: list[Result] = []
    with ExitStack() as stack:
        place = databases_on(database, pgmq=False) if database else temporary_server(pgmq=False)
        server = stack.enter_context(place)
        versions["postgresql"] = server.version
        described = machine(server.settings)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        clients, sdk = stack.enter_context(Crew(work)), stack.enter_context(Crew())
        first = stack.enter_context(replica(server.headgate_url, home))
        bench = HttpBench(server.headgate_url, plan, home, first, clients, sdk)
        for name in names:
            start = time.monotonic()
            results += BENCHMARKS[name](bench)
            talk(f"{name}: {time.monotonic() - start:.0f} s")
    return Run(described, versions, results)
