"""`headgate up`: the server."""

from __future__ import annotations

from typing import Any

import click

import headgate

from . import served
from .app import app
from .call import Call, command, options, quiet_pool
from .exit_codes import FAILED, OK
from .output import print_status

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
        call.print_data(facts, f"{facts['url']}\n{running.url}")
        if running.token_file is not None and log_format == "text":
            print_status(f"open {running.url} in a browser; a token for administrators is in {running.token_file}")

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
