"""`headgate demo`: a shop to look at."""

from __future__ import annotations

import click

import headgate

from . import served
from .app import app
from .call import Call, command, quiet_pool
from .output import print_status


@command(app, "demo")
@click.option("--port", type=int, default=7376, show_default=True, help="The console's port; 0 takes a free one.")
@click.option("--rate", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="How much is going on.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Stop after so long. Default: on Ctrl-C.")
@click.option("--own", is_flag=True, help="Start a server also where one runs in this folder.")
@click.option("--remove", is_flag=True, help="Remove what demos have left in that database, and end.")
def demo(call: Call, port: int, rate: float, seconds: float | None, own: bool, remove: bool) -> None:
    """Run a small shop, to see everything move: streams, tenants, failures, pushes, a table that feeds a stream.

    Where `headgate up` (or `make run`) runs in this folder, the shop opens there. Otherwise it has a PostgreSQL and a
    server of its own, gone at the end. --database, --context or $HEADGATE_DATABASE_URL name another database. In one
    that is not its own it leaves its streams (orders, payments, emails, clicks, stock) and the schema headgate_demo.
    """
    try:
        from headgate import demo as demos  # here: no other command needs it
        from headgate.server import run  # noqa: F401 - whether it can
    except ImportError as missing:
        raise headgate.Error(f"the demo needs {missing.name}", hint="pip install 'headgate[server]'") from missing

    def ready(started: demos.Started) -> None:
        place = {"console": started.console, "url": started.url, "token": started.token}
        call.print_data({**place, "database": started.database_url}, started.console)
        print_status("open it in a browser; Ctrl-C ends the demo")
        if beside is not None:
            print_status(
                "shipments are pushed if that server was started with --push-allow 127.0.0.1, as `make run` does"
            )

    quiet_pool()
    database = call.named_url
    beside, home = None, None
    if not own and (url := served.server_of(database)) is not None:
        secret = served.home() / "token"
        token = secret.read_text(encoding="utf-8").strip() if secret.exists() else ""
        beside = demos.Started(url, token, database or f"of {served.home()}")
        home = None if database else served.home()
        print_status(f"a server runs in this folder, at {url}: the shop opens there (--own starts another)")
    if remove:
        if database is None and home is None:
            raise click.UsageError("name the database with --database, or start its server in this folder")
        removed = demos.remove(database, home)
        call.print_data(
            {"removed": removed}, "removed " + ", ".join(removed) if removed else "there was nothing to remove"
        )
        return
    demos.run(database, beside=beside, directory=home, port=port, rate=rate, seconds=seconds, ready=ready)
    if beside is not None or database is not None:
        print_status("its streams are still there to look at: `headgate demo --remove` removes them")
