"""What `headgate bench` does with its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .plan import FULL, QUICK
from .report import SDK_PAGE, Page, require_matplotlib, write
from .results import Run, table
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
    names = [name for name in BENCHMARKS if name in args.names or not args.names]
    plan = (QUICK if args.quick else FULL).scaled(args.scale)

    def found() -> Run:
        return run(watch(names), plan, database=args.database, only_headgate=args.only_headgate, talk=talk)

    return finish(args, found, say, talk, SDK_PAGE)


def finish(
    args: argparse.Namespace,
    run: Callable[[], Run],
    say: Callable[[Any], None],
    talk: Callable[[str], None],
    page: Page,
) -> int:
    """Has it run, and writes what was found: the table or JSON, and the report when one is asked for."""
    if args.report is not None:
        require_matplotlib()  # better now than after the run
    found = run()
    if args.report is not None:
        talk(f"report: {write(found, args.report, page)}")
    say(found.as_json() if args.json else table(found.results))
    return _BELOW_TARGET if args.check and found.below else 0
