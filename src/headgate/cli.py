"""The command line. stdout is data, stderr is talk.

Exit codes: 0 done, 1 an error (with a hint), 2 wrong usage, 3 a check that did not hold, 130 interrupted.
A command is a parser in `_parser` and a function of its arguments that returns an exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import headgate

OK, FAILED, USAGE, CHECK, INTERRUPTED = 0, 1, 2, 3, 130
BENCHMARKS = ("publish", "consume", "fanout", "latency", "backlog", "pinned", "channels", "idle", "active", "keys")

# Databases that connect() refuses; to the doctor that is a finding.
UNFIT = (headgate.SchemaMissing, headgate.SchemaOutdated, headgate.SchemaTooNew, headgate.ServerTooOld)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has said what is wrong
        return end.code if isinstance(end.code, int) else USAGE
    try:
        code: int = args.command(args)
    except headgate.Error as error:
        _talk(f"error: {error.message}")
        if error.hint:
            _talk(f"hint: {error.hint}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headgate", description="A message queue and an event stream inside PostgreSQL."
    )
    parser.add_argument("--version", action="version", version=f"headgate {headgate.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    database = argparse.ArgumentParser(add_help=False)
    database.add_argument(
        "--database", metavar="URL", default=os.environ.get("HEADGATE_DATABASE_URL") or None,
        help="a PostgreSQL database (default: $HEADGATE_DATABASE_URL, or else a private server)",
    )  # fmt: skip
    database.add_argument("--json", action="store_true", help="print JSON")

    def command(name: str, function: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, parents=[database], help=summary, description=summary)
        made.set_defaults(command=function)
        return made

    command("up", _up, "Run Headgate: migrate, print the database's URL, and maintain it until stopped.")
    command("migrate", _migrate, "Install or upgrade Headgate's schema, and print its version.")

    command("doctor", _doctor, "Say what is wrong with the database and what to do; exit with 1 when it is a problem.")

    bench = command("bench", _bench, "Measure Headgate beside pgmq and a raw COPY.")
    bench.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which benchmarks (default: all): {', '.join(BENCHMARKS)}"
    )
    bench.add_argument("--quick", action="store_true", help="short rounds: some minutes in all")
    bench.add_argument("--report", metavar="DIR", type=Path, help="write README.md and plots there")
    bench.add_argument("--only-headgate", action="store_true", help="leave pgmq and COPY out")
    bench.add_argument("--check", action="store_true", help=f"exit with {CHECK} when a target is missed")
    bench.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)  # for tests
    bench.set_defaults(usage_error=bench.error)
    return parser


def _up(args: argparse.Namespace) -> int:
    hg = headgate.Headgate(args.database)
    service = hg.maintenance()
    for number in (signal.SIGINT, signal.SIGTERM):  # before a private server is started, which must be left again
        signal.signal(number, lambda *_: service.stop())
    with hg.open(migrate=True):
        _say({"url": hg.url} if args.json else hg.url)
        service.run()
    return OK


def _doctor(args: argparse.Namespace) -> int:
    try:
        with headgate.connect(args.database, migrate=False) as hg:
            findings = hg.doctor()
    except UNFIT as error:
        findings = [headgate.Finding("problem", "version", error.message, error.hint or "")]
    if args.json:
        _say([asdict(f) for f in findings])
    else:
        for f in findings:
            _say(f"{f.severity}: {f.finding}\n    {f.advice}")
        if not findings:
            _talk("nothing is wrong")
    return FAILED if any(f.severity == "problem" for f in findings) else OK


def _migrate(args: argparse.Namespace) -> int:
    with headgate.connect(args.database, migrate=True) as hg:
        version = hg.migrate()
    _say({"version": version} if args.json else version)
    return OK


def _bench(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        try:
            args.usage_error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
        except SystemExit:
            return USAGE
    from headgate.bench import command  # here, because no other command needs it

    return int(command.bench(args, say=_say, talk=_talk) or OK)


def _say(data: Any) -> None:
    """Prints data: JSON, unless it is text or a number."""
    print(data if isinstance(data, (str, int)) else json.dumps(data, indent=2), flush=True)


def _talk(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
