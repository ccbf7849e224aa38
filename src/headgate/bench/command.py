"""What `headgate bench` does with its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .plan import FULL, QUICK
from .results import table
from .run import BENCHMARKS, run

_BELOW_TARGET = 3


def bench(
    args: argparse.Namespace,
    *,
    say: Callable[[Any], None],
    talk: Callable[[str], None],
    watch: Callable[[Sequence[str]], Iterable[str]],
) -> int:
    """Runs the benchmarks, writes what they found, and returns the exit code. `watch` shows how far they are."""
    if args.report is not None:
        from .report import require_matplotlib

        require_matplotlib()  # better now than after the run
    names = [name for name in BENCHMARKS if name in args.names or not args.names]
    plan = (QUICK if args.quick else FULL).scaled(args.scale)
    found = run(watch(names), plan, database=args.database, only_headgate=args.only_headgate, talk=talk)
    if args.report is not None:
        from .report import write

        talk(f"report: {write(found, args.report)}")
    say(found.as_json() if args.json else table(found.results))
    return _BELOW_TARGET if args.check and found.below else 0
