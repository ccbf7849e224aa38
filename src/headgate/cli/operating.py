"""Running and looking after a database: up, migrate, maintain, doctor, bench, torture, completion."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

import headgate

from . import context_file, served, values
from .advice import as_commands
from .app import app
from .call import Call, command, options, quiet_pool
from .complete import SHELLS
from .exits import FAILED, NOTHING, OK
from .output import say, talk
from .progress import each

BENCHMARKS = (
    "publish",
    "consume",
    "sql",
    "fanout",
    "latency",
    "backlog",
    "pinned",
    "channels",
    "idle",
    "active",
    "keys",
    "looking",
    "streams",
)

APART = ("http", "spark")  # these have benchmarks of their own

UP = (
    click.option(
        "--host", default="127.0.0.1", show_default=True, envvar="HEADGATE_HOST", help="The address to listen on."
    ),
    click.option(
        "--port", type=int, default=7376, show_default=True, envvar="HEADGATE_PORT",
        help="The port to listen on; 0 takes a free one.",
    ),
    click.option(
        "--processes", type=click.IntRange(1, 256), envvar="HEADGATE_PROCESSES",
        help="Processes that serve, on one port. Default: one for each core, up to 8.",
    ),
    click.option(
        "--no-auth", is_flag=True, envvar="HEADGATE_NO_AUTH",
        help="Take requests without a token, from this machine alone.",
    ),
    click.option(
        "--first-token/--no-first-token", default=True, show_default=True, envvar="HEADGATE_FIRST_TOKEN",
        help="Have a token for administrators in a file; `headgate token add` makes others.",
    ),
    click.option(
        "--connections", type=click.IntRange(min=1), default=24_000, show_default=True, envvar="HEADGATE_CONNECTIONS",
        help="So many connections of callers at once; more are refused.",
    ),
    click.option("--no-push", is_flag=True, envvar="HEADGATE_NO_PUSH", help="Leave push consumers to other servers."),
    click.option(
        "--push-private", is_flag=True, envvar="HEADGATE_PUSH_PRIVATE",
        help="Push to any address, also of this network.",
    ),
    click.option(
        "--push-allow", multiple=True, metavar="HOST|NETWORK", envvar="HEADGATE_PUSH_ALLOW",
        help="Push there, besides public addresses.",
    ),
    click.option(
        "--hide", multiple=True, metavar="PATH", envvar="HEADGATE_HIDE",
        help="Show this part of messages to administrators alone: data.card.number, headers.authorization, data.",
    ),
    click.option(
        "--environment", metavar="NAME[:COLOUR]", default="", envvar="HEADGATE_ENVIRONMENT",
        help="What the console calls this place at its top; red, amber, green, blue, violet or grey.",
    ),
    click.option(
        "--audit-days", type=click.IntRange(0, 36_500), default=90, show_default=True, envvar="HEADGATE_AUDIT_DAYS",
        help="How long administrative calls are remembered; 0 is for ever.",
    ),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
        envvar="HEADGATE_LOG_FORMAT", help="How the log on stderr is written: json is one object a line.",
    ),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", show_default=True,
        envvar="HEADGATE_LOG_LEVEL", help="What is logged: this and worse.",
    ),
    click.option(
        "--access-log", is_flag=True, envvar="HEADGATE_ACCESS_LOG",
        help="Log each request at level info; otherwise it is at level debug.",
    ),
)  # fmt: skip

# Databases that connect() refuses; to the doctor that is a finding.
UNFIT = (
    headgate.errors.SchemaMissing,
    headgate.errors.SchemaOutdated,
    headgate.errors.SchemaTooNew,
    headgate.errors.ServerTooOld,
)


@command(app, "up")
@options(UP)
def up(call: Call, host: str, port: int, no_auth: bool, no_push: bool, **more: Any) -> int:
    """Run Headgate: migrate, print the URLs of database and HTTP server, maintain and serve until stopped.

    Each option can be given in the environment, too: HEADGATE_PORT for `--port`, and so on.
    """
    try:
        from headgate.server.operate import logs
        from headgate.server.processes.cores import by_cores
        from headgate.server.run import Running, serve  # here, because no other command needs it
        from headgate.server.settings import Settings
    except ImportError as missing:
        raise headgate.Error(
            f"the HTTP server needs {missing.name}", hint="pip install 'headgate[server]'"
        ) from missing

    def ready(running: Running) -> None:
        # stdout may be kept as a log is: a password has no business there
        facts = {"url": logs.hide_secrets(running.database_url), "http": running.url}
        facts["token_file"] = str(running.token_file or "")
        served.note(file, running.url, call.url)
        call.say(facts, f"{facts['url']}\n{running.url}")
        if running.token_file is not None and log_format == "text":
            talk(f"open {running.url} in a browser; a token for administrators is in {running.token_file}")

    quiet_pool()
    log_format = more.pop("log_format")
    logs.set_up(log_format, more.pop("log_level"))
    days = more.pop("audit_days") or None
    more["processes"] = more["processes"] or by_cores()
    settings = Settings(call.url, host=host, port=port, auth=not no_auth, push=not no_push, audit_days=days, **more)
    try:
        with served.noted() as file:
            serve(settings, ready)
    except Exception as error:
        if log_format == "text":
            raise
        logs.say_last(error)
        return FAILED
    return OK


@command(app, "worker")
@click.argument("target", metavar="MODULE:NAME")
def worker(call: Call, target: str) -> None:
    """Run a worker until SIGTERM or Ctrl-C, and then finish what runs.

    NAME is what `@consumer.worker` made of a function, or a function without arguments that returns it: `async def`
    for the worker of an async client. MODULE is looked for in this directory, too. The worker's log goes to stderr,
    and what it did to stdout at the end. It is the module that connects: --database and --context reach it as
    $HEADGATE_DATABASE_URL and $HEADGATE_TOKEN.
    """
    if not all(target.partition(":")):
        raise click.UsageError(f"{target!r} is not MODULE:NAME, such as orders.work:handle")
    from headgate.worker.program import run_program  # here: no other command needs it

    call.tell_place()
    done = run_program(target)
    call.say(
        {"acked": done.acked, "failed": done.nacked, "released": done.released, "lost": done.lost},
        f"acked {done.acked}, failed {done.nacked}, handed back {done.released}, lost {done.lost}",
    )


@command(app, "migrate")
@click.option("--wait", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to wait for transactions that are in the way; stderr says whose they are.")  # fmt: skip
def migrate(call: Call, wait: float) -> None:
    """Install or upgrade Headgate's schema, and print its version."""
    quiet_pool()
    with headgate.Headgate(call.url).open(migrate=True, wait=wait, tell=talk) as hg:
        version = hg.migrate(tell=lambda _: None)  # it has been told
    call.say({"version": version}, version)


@command(app, "maintain")
def maintain(call: Call) -> None:
    """Do one step of maintenance, and print what was done.

    `headgate up` and workers do it all the time: this is for a database that has neither, from cron for example.
    """
    done = [{"task": task, "subject": subject, "done": count} for task, subject, count in call.direct.maintain()]
    call.say_rows(done, done, ("task", "subject", "done"), "there was nothing to do")


@command(app, "doctor", curl=True)
@click.option(
    "--patience", type=values.time, default="5m", show_default=True, metavar="TIME",
    help="Report what lasts longer than this, such as 30s or 1h.",
)  # fmt: skip
def doctor(call: Call, patience: timedelta) -> int:
    """Say what is wrong with the database and what to do; exit with 1 when it is a problem."""
    if call.curl("GET", "doctor", query={"patience_ms": round(patience.total_seconds() * 1000)}):
        return OK
    try:
        findings = call.hg.doctor(patience)
    except UNFIT as error:
        findings = [headgate.types.Finding("problem", "version", error.message, error.hint or "")]
        if isinstance(error, headgate.errors.SchemaOutdated) and not call.is_server:
            advice = "Commit or roll back there, or end it: select pg_terminate_backend(pid), or rollback prepared."
            for who in headgate.Headgate(call.url).in_the_way():
                findings.append(
                    headgate.types.Finding("warning", "migrate", f"An upgrade would wait for {who}.", advice)
                )
    if call.json:
        say(findings)
    else:
        for f in findings:
            say(f"{f.severity}: {f.finding}\n    {as_commands(f.advice)}")
        if not findings:
            talk("nothing is wrong")
    return FAILED if any(f.severity == "problem" for f in findings) else OK


@command(app, "bench")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice((*BENCHMARKS, *APART)))
@click.option("--quick", is_flag=True, help="Short rounds: some minutes in all.")
@click.option("--report", metavar="DIR", type=click.Path(path_type=Path), help="Write README.md and plots there.")
@click.option("--only-headgate", is_flag=True, help="Leave pgmq and COPY out.")
@click.option("--check", is_flag=True, help=f"Exit with {NOTHING} when a target is missed.")
@click.option("--scale", type=float, default=1.0, hidden=True)  # for tests
def bench(call: Call, names: tuple[str, ...], **options: object) -> int:
    """Measure Headgate beside pgmq and a raw COPY: all benchmarks, or those called NAME.

    `headgate bench http` measures the HTTP server instead, under the load of 50 clients on this machine, and
    `headgate bench spark` Spark's source and sink, and archives.
    """
    args = argparse.Namespace(names=names, json=call.json, database=call.named_url, **options)
    if set(APART) & set(names):
        if len(names) > 1:
            raise click.UsageError(f"{' and '.join(APART)} are measured by themselves: leave the other names out")
        measure = getattr(import_module(f"headgate.bench.{names[0]}.run"), names[0])  # here: no other command needs it
        return int(measure(args, say=say, talk=talk, watch=lambda found: each(found, f"bench {names[0]}")))
    from headgate.bench import command as benchmarks

    return benchmarks.bench(args, say=say, talk=talk, watch=lambda names: each(names, "bench"))


@command(app, "torture")
@click.argument("names", nargs=-1, metavar="[PRESET]...")
@click.option("--seed", type=click.IntRange(1), metavar="N", help="Of the first history. Default: one by chance.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="So many seeds of each preset.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), metavar="M",
              help="One seed after the other for so long, instead of --count.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=6.0, show_default=True,
              help="How long sessions work in each history; setting up, draining and judging come on top.")  # fmt: skip
@click.option("--meetings", is_flag=True, help="Stop calls at each point of the engine instead, and let others go by.")
@click.option("--postgres", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="The programs of the temporary PostgreSQL: another version, for example.")  # fmt: skip
@click.option("--older", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Begin with this schema, the install_sql() of an older version, and upgrade it under traffic.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="Change the presets: workers=2, weights.seek=0, sizes=1,3, stream.lanes=1, consumers=free.",
)  # fmt: skip
@click.option("--shrink", is_flag=True,
              help="When something is wrong, look for a simpler setting under which it still is, for 3 minutes.",
)  # fmt: skip
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              default=Path("torture-findings"), show_default=True,
              help="Where explanations, diagrams and histories go when something is wrong.")  # fmt: skip
@click.option("--judge", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Judge a history that was kept, instead of running one.")  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Say what each preset is about (with --meetings: each world).")
def torture(call: Call, names: tuple[str, ...], meetings: bool, listing: bool, **options: object) -> int:
    """Have sessions do whatever they like to a stream, and judge what they were told; exit with 3 when it was wrong.

    They send, receive, settle, seek, alter and maintain, inside open transactions of every isolation level and outside.
    What is lost, delivered twice, out of order, stuck or refused without a reason is explained, with the seed.
    PRESETs: all, or those named; --list shows them. With --meetings they are worlds, in each of which every two calls
    meet at every point of the engine.

    It works on a temporary server. Where a database is named, by --database, --context or $HEADGATE_DATABASE_URL, it
    makes databases of its own on that server instead, drops them at the end, and says so first.
    """
    args = argparse.Namespace(names=names, json=call.json, database=call.named_url, **options)
    from headgate.torture import command as tortures  # here: no other command needs it

    if unknown := tortures.unknown(names, meetings, call.named_url is not None):
        raise click.UsageError(unknown)
    if listing:
        presets = tortures.catalogue(names, meetings)
        call.say(presets, "\n".join(f"{p['name']:24}{p['about']}" for p in presets))
        return OK
    if call.named_url is not None and not args.judge:
        talk(f"in databases of its own on the server of {context_file.hidden(call.named_url)}")
    if meetings:
        with ended_by_signals():
            return NOTHING if tortures.meet(args, say=say, talk=talk, watch=each) else OK
    try:
        args.presets = tortures.chosen(names, args.settings, args.older)
        args.judge = tortures.load(args.judge) if args.judge else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with ended_by_signals():
        return NOTHING if tortures.torture(args, say=say, talk=talk) else OK


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, and both do in the background, too: what it has started ends with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@command(app, "completion", database=False)
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar="|".join(SHELLS))
def completion(call: Call, shell: str | None) -> None:
    """Print a completion script for a shell.

    For bash: `headgate completion bash > ~/.local/share/bash-completion/completions/headgate`
    """
    shell = shell or call.ask("shell", type=click.Choice(SHELLS))
    kind = get_completion_class(shell)
    assert kind is not None  # SHELLS are those that click knows
    script = kind(app, {}, "headgate", "_HEADGATE_COMPLETE").source()
    call.say({"shell": shell, "script": script}, script)
