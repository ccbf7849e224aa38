"""`headgate observe`: everything at a glance, in the terminal."""

from __future__ import annotations

import click

import headgate

from ..trouble import SORTS
from .app import app
from .call import Call, command


@command(app, "observe")
@click.option("--once", is_flag=True, help="Look once, print it, and end: for scripts, with --json.")
@click.option("--sort", type=click.Choice(SORTS), default="trouble", show_default=True, help="What comes first.")
@click.option("--search", default="", metavar="TEXT", help="Only consumers with this in their names.")
def observe(call: Call, once: bool, sort: str, search: str) -> None:
    """Watch streams and consumers, those in trouble first.

    Keys: s sorts, / filters, Enter opens a consumer, p pauses or resumes it, d redrives its dead letters, q ends.
    """
    if once or call.json:
        from ..observe.looking import look  # here: help needs no database

        seen = look(call.hg, sort, search)
        rows = [f"{x.trouble.word:8} {x.info.stream}/{x.info.name}  lag {x.info.lag:,}" for x in seen.lines]
        call.print_data(seen.as_json(), "\n".join(rows))
        return
    try:
        from ..observe.app import Observe  # here: no other command needs it
    except ImportError as missing:
        raise headgate.Error(f"observe needs {missing.name}", hint="pip install 'headgate[observe]'") from missing
    shown = Observe(call.hg)
    shown.sort, shown.search = sort, search
    shown.run()
