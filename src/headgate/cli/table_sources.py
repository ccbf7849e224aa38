"""`headgate source check|pause|resume|restart|backfill`: commands of sources of tables alone."""

from __future__ import annotations

import click

from .call import Call, command, given, options
from .sources import SOURCE, sources
from .table_options import MAKING, TABLES, backfills

SOME = click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only of this table. Repeatable.")


@command(sources, "check", curl=True)
@options(TABLES, MAKING)
def check(call: Call, url: str | None, tables: tuple[str, ...], publication: str | None, slot: str | None) -> int:
    """Look whether tables of a PostgreSQL database can be read, and what to do if not. Changes nothing."""
    url = url or str(call.ask("url", hide=True))
    more = given({"publication": publication, "slot": slot})
    if call.curl("POST", "sources", "check", body={"url": url, "tables": list(tables) or ["*"], **more}):
        return 0
    found = call.hg.sources.check_postgres(url, list(tables) or ["*"], **more)
    rows = [
        {"check": c.name, "ok": "yes" if c.is_ok else "no", "found": c.found, "advice": c.advice or ""} for c in found
    ]
    call.print_rows(found, rows, ("check", "ok", "found", "advice"), "there is nothing to check")
    return 0 if all(c.is_ok for c in found) else 3


@command(sources, "backfill", curl=True)
@SOURCE
@SOME
@click.option("--from", "start", metavar="COLUMN=VALUE", help="Only rows whose column is not below this value.")
@click.option("--deletions", is_flag=True, help="Also send a delete for each row that the table no longer has.")
@click.option("--status", "act", flag_value="status", help="Only say how far it is.")
@click.option("--pause", "act", flag_value="pause", help="Read no rows for now.")
@click.option("--resume", "act", flag_value="resume", help="Go on.")
@click.option("--cancel", "act", flag_value="cancel", help="End it.")
def backfill(
    call: Call, source: str | None, tables: tuple[str, ...], start: str | None, deletions: bool, act: str | None
) -> None:
    """Send all rows of a source's tables, beside their changes; asked for again, it begins anew."""
    source = source or str(call.ask("source"))
    chosen = list(tables) or None
    column, sign, value = (start or "").partition("=")
    if start is not None and not (column and sign):
        raise click.UsageError("--from wants COLUMN=VALUE")
    body = given({
        "tables": chosen, "from_column": column or None, "from_value": value if sign else None,
        "deletions": deletions or None,
    })  # fmt: skip
    if act is not None and body and not (act == "cancel" and body.keys() == {"tables"}):
        raise click.UsageError(f"--{act} has no further options" + (" but --table" if act == "cancel" else ""))
    method = {"status": "GET", "cancel": "DELETE"}.get(act or "", "POST")
    path = [act] if act in ("pause", "resume") else []
    if call.curl(method, "sources", source, "backfill", *path, body=body or None):
        return
    of = call.hg.sources
    if act is None:
        of.backfill(source, chosen, from_column=column or None, from_value=value if sign else None, deletions=deletions)
    elif act == "pause":
        of.pause_backfill(source)
    elif act == "resume":
        of.resume_backfill(source)
    elif act == "cancel":
        of.cancel_backfill(source, chosen)
    of.postgres(source)
    backfills(call, source)


@command(sources, "restart", curl=True)
@SOURCE
@click.option("--url", metavar="URL", envvar="HEADGATE_SOURCE_URL", help="Where the database is now.")
@click.option("--no-backfill", is_flag=True, help="Send only what changes from now on.")
@click.option("--no-deletions", is_flag=True, help="Do not send deletes for rows that are gone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def restart(call: Call, source: str | None, url: str | None, no_backfill: bool, no_deletions: bool, yes: bool) -> None:
    """Read a source anew whose slot is lost: with a new slot, and a backfill of what is missing."""
    source = source or str(call.ask("source"))
    how = {"backfill": not no_backfill, "deletions": not no_deletions}
    if call.curl("POST", "sources", source, "restart", body={**given({"url": url}), **how}):
        return
    call.confirm(f"drop the slot of {source}, if it is still there, and read anew?", yes)
    call.print_data(call.hg.sources.restart_postgres(source, url=url, **how), source)


@command(sources, "pause", curl=True)
@SOURCE
def pause(call: Call, source: str | None) -> None:
    """Stop reading the tables of a source. Meanwhile their database keeps its WAL, which takes room."""
    source = source or str(call.ask("source"))
    if call.curl("POST", "sources", source, "pause"):
        return
    call.hg.sources.pause(source)
    call.print_data({"paused": source}, source)


@command(sources, "resume", curl=True)
@SOURCE
def resume(call: Call, source: str | None) -> None:
    """Read the tables of a source again, from where it was."""
    source = source or str(call.ask("source"))
    if call.curl("POST", "sources", source, "resume"):
        return
    call.hg.sources.resume(source)
    call.print_data({"resumed": source}, source)
