"""`headgate migrate`: the schema."""

from __future__ import annotations

import click

import headgate

from .app import app
from .call import Call, command, quiet_pool
from .output import print_status


@command(app, "migrate")
@click.option("--wait", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to wait for transactions that are in the way; stderr says whose they are.")  # fmt: skip
def migrate(call: Call, wait: float) -> None:
    """Install or upgrade Headgate's schema, and print its version."""
    quiet_pool()
    with headgate.Headgate(call.url).open(migrate=True, wait=wait, tell=print_status) as hg:
        version = hg.migrate(tell=lambda _: None)  # it has been told
    call.print_data({"version": version}, version)
