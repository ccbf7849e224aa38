"""Running and looking after a database: up, migrate, maintain, doctor, bench, completion."""

from __future__ import annotations

import argparse
from pathlib import Path

import click
from click.shell_completion import get_completion_class

import headgate

from .app import app
from .call import Call, command
from .complete import SHELLS
from .exits import FAILED, NOTHING, OK
from .output import say, talk
from .progress import each

BENCHMARKS = ("publish", "consume", "fanout", "latency", "backlog", "pinned", "channels", "idle", "active", "keys")

HTTP = "http"  # has benchmarks of its own

# Databases that connect() refuses; to the doctor that is a finding.
UNFIT = (headgate.SchemaMissing, headgate.SchemaOutdated, headgate.SchemaTooNew, headgate.ServerTooOld)


@command(app, "up")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=7376, show_default=True, help="The port to listen on; 0 takes a free one.")
@click.option("--no-auth", is_flag=True, help="Take requests without a token, from this machine alone.")
def up(call: Call, host: str, port: int, no_auth: bool) -> int:
    """Run Headgate: migrate, print the URLs of database and HTTP server, maintain and serve until stopped."""
    try:
        from headgate.server.run import Running, serve  # here, because no other command needs it
        from headgate.server.settings import Settings
    except ImportError as missing:
        raise headgate.Error(
            f"the HTTP server needs {missing.name}", hint="pip install 'headgate[server]'"
        ) from missing

    def ready(running: Running) -> None:
        facts = {"url": running.database_url, "http": running.url, "token_file": str(running.token_file or "")}
        call.say(facts, f"{running.database_url}\n{running.url}")
        if running.token_file is not None:
            talk(f"a token for administrators is in {running.token_file}")

    serve(Settings(call.url, host=host, port=port, auth=not no_auth), ready)
    return OK


@command(app, "migrate")
def migrate(call: Call) -> None:
    """Install or upgrade Headgate's schema, and print its version."""
    with headgate.connect(call.url, migrate=True) as hg:
        version = hg.migrate()
    call.say({"version": version}, version)


@command(app, "maintain")
def maintain(call: Call) -> None:
    """Do one step of maintenance, and print what was done.

    `headgate up` and workers do it all the time: this is for a database that has neither, from cron for example.
    """
    done = [{"task": task, "subject": subject, "done": count} for task, subject, count in call.hg.maintain()]
    call.say_rows(done, done, ("task", "subject", "done"), "there was nothing to do")


@command(app, "doctor")
def doctor(call: Call) -> int:
    """Say what is wrong with the database and what to do; exit with 1 when it is a problem."""
    try:
        findings = call.hg.doctor()
    except UNFIT as error:
        findings = [headgate.Finding("problem", "version", error.message, error.hint or "")]
    if call.json:
        say(findings)
    else:
        for f in findings:
            say(f"{f.severity}: {f.finding}\n    {f.advice}")
        if not findings:
            talk("nothing is wrong")
    return FAILED if any(f.severity == "problem" for f in findings) else OK


@command(app, "bench")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice((*BENCHMARKS, HTTP)))
@click.option("--quick", is_flag=True, help="Short rounds: some minutes in all.")
@click.option("--report", metavar="DIR", type=click.Path(path_type=Path), help="Write README.md and plots there.")
@click.option("--only-headgate", is_flag=True, help="Leave pgmq and COPY out.")
@click.option("--check", is_flag=True, help=f"Exit with {NOTHING} when a target is missed.")
@click.option("--scale", type=float, default=1.0, hidden=True)  # for tests
def bench(call: Call, names: tuple[str, ...], **options: object) -> int:
    """Measure Headgate beside pgmq and a raw COPY: all benchmarks, or those called NAME.

    `headgate bench http` measures the HTTP server instead, under the load of 50 clients on this machine.
    """
    args = argparse.Namespace(names=names, json=call.json, database=call.named_url, **options)
    if HTTP in names:
        if len(names) > 1:
            raise click.UsageError(f"{HTTP} is measured by itself: leave the other names out")
        from headgate.bench.http import run as of_http  # here, because no other command needs it

        return of_http.http(args, say=say, talk=talk, watch=lambda names: each(names, "bench http"))
    from headgate.bench import command as benchmarks

    return benchmarks.bench(args, say=say, talk=talk, watch=lambda names: each(names, "bench"))


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
