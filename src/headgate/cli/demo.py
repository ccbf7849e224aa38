"""`headgate demo`: a shop to look at."""

from __future__ import annotations

import click

import headgate

from .app import app
from .call import Call, command, quiet_pool
from .output import print_status


@command(app, "demo")
@click.option("--port", type=int, default=7376, show_default=True, help="The console's port; 0 takes a free one.")
@click.option("--rate", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="How much is going on.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Stop after so long. Default: on Ctrl-C.")
def demo(call: Call, port: int, rate: float, seconds: float | None) -> None:
    """Run a small shop, to see everything move: streams, tenants, failures, pushes, a table that feeds a stream.

    It has a PostgreSQL of its own, which is gone at the end, unless --database, --context or $HEADGATE_DATABASE_URL
    names one: there it leaves its streams (orders, payments, emails, clicks, stock) and the schema headgate_demo.
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

    quiet_pool()
    if call.named_url is not None and call.named_url.lower().startswith(("http://", "https://")):
        raise click.UsageError("the demo needs a database: it makes streams and reads a table")
    demos.run(call.named_url, port=port, rate=rate, seconds=seconds, ready=ready)
