"""The command line. stdout is data, stderr is talk.

Exit codes: 0 done, 1 an error (with a hint), 2 wrong usage, 3 a check that did not hold, 130 interrupted.
A command is a parser in `_parser` and a function of its arguments that returns an exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import headgate

OK, FAILED, USAGE, CHECK, INTERRUPTED = 0, 1, 2, 3, 130
BENCHMARKS = ("publish", "consume", "fanout", "latency", "backlog", "pinned")

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

    up = command("up", _up, "Run Headgate: migrate, print the URLs of database and HTTP server, serve until stopped.")
    up.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    up.add_argument("--port", type=int, default=7376, help="the port to listen on (default: 7376; 0: a free one)")
    up.add_argument("--no-auth", action="store_true", help="take requests without a token, from this machine alone")
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
    try:
        from headgate.server.run import Running, serve  # here, because no other command needs it
        from headgate.server.settings import Settings
    except ImportError as missing:
        raise headgate.Error(
            f"the HTTP server needs {missing.name}", hint="pip install 'headgate[server]'"
        ) from missing

    def ready(running: Running) -> None:
        if args.json:
            _say({"url": running.database_url, "http": running.url, "token_file": str(running.token_file or "")})
        else:
            _say(f"{running.database_url}\n{running.url}")
        if running.token_file is not None:
            _talk(f"a token for administrators is in {running.token_file}")

    serve(Settings(args.database, host=args.host, port=args.port, auth=not args.no_auth), ready)
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
