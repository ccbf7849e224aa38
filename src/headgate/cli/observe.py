"""`headgate observe`: everything at a glance, in the terminal."""

from __future__ import annotations

import sys

import click

import headgate

from ..trouble import SORTS
from .app import app
from .call import Call, command


@command(app, "observe")
@click.option("--once", is_flag=True, help="Look once, print it, and end: for scripts, with --json.")
@click.option("--sort", type=click.Choice(SORTS), default="trouble", show_default=True, help="What comes first.")
@click.option("--search", default="", metavar="TEXT", help="Only consumers and streams with this in their names.")
def observe(call: Call, once: bool, sort: str, search: str) -> None:
    """Watch streams, consumers, messages, tenants and sources, what is in trouble first.

    Over a database, or over HTTP with a context. `?` shows the keys: 1 to 5 change the list, s sorts, / filters, Enter
    opens, p pauses or resumes, d redrives dead letters, q ends.
    """
    if once or call.json:
        from ..observe.looking import look  # here: help needs no database
        from ..observe.text import as_text

        seen = look(call.hg, sort, search, None)
        call.print_data(seen.as_json(), as_text(seen))
        return
    try:
        from ..observe.app import Observe  # here: no other command needs it
    except ImportError as missing:
        package = (missing.name or "textual").partition(".")[0]
        raise headgate.Error(f"observe needs {package}", hint="pip install 'headgate[observe]'") from missing
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("observe needs a terminal; --once prints one look")
    Observe(call.hg, sort=sort, search=search).run()
