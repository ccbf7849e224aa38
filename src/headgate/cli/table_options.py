"""`headgate source`, as far as it is about tables of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

import headgate

from . import values
from .call import Call, at_terminal, given
from .output import print_status

OF_TABLES = ("url", "tables", "streams", "keys", "warn_bytes", "drop_bytes", "backfill_rate", "backfill")

TABLES = (
    click.option("--url", metavar="URL", envvar="HEADGATE_SOURCE_URL", help="Of postgres: the database to read."),
    click.option(
        "--table", "tables", multiple=True, metavar="TABLE",
        help="Of postgres: a table (public.orders), a schema (public.*) or all (*). Repeatable.",
    ),
)  # fmt: skip
MAKING = (
    click.option("--publication", metavar="NAME", help="Of postgres: use this publication instead of making one."),
    click.option("--slot", metavar="NAME", help="Of postgres: use this replication slot instead of making one."),
)
ROUTES = (
    click.option(
        "--stream-of", "streams", multiple=True, metavar="TABLE=STREAM",
        help="Of postgres: send this table to a stream of its own. Repeatable.",
    ),
    click.option(
        "--key-of", "keys", multiple=True, metavar="TABLE=COLUMN,…",
        help="Of postgres: key this table's messages by these columns. Repeatable.",
    ),
)  # fmt: skip
LIMITS = (
    click.option(
        "--warn-size", "warn_bytes", type=values.size, metavar="SIZE",
        help="Of postgres: warn when its slot keeps more log than this. Default: 1GB.",
    ),
    click.option(
        "--drop-size", "drop_bytes", type=values.size, metavar="SIZE",
        help="Of postgres: drop its slot when it keeps more log than this. 0: never, the default.",
    ),
    click.option("--backfill-rate", type=int, metavar="ROWS", help="Of postgres: so many rows a second. 0: as fast as "
                 "they come."),
)  # fmt: skip


def of_tables(options: dict[str, Any]) -> dict[str, Any]:
    """What was given of the options of sources of tables."""
    streams = dict(_pair(p, "--stream-of TABLE=STREAM") for p in options.pop("streams"))
    keys = {t: c.replace(" ", "").split(",") for t, c in (_pair(p, "--key-of") for p in options.pop("keys"))}
    options["tables"] = list(options["tables"]) or None
    options["backfill"] = options["backfill"] or None
    return given({**options, "streams": streams or None, "keys": keys or None})


def _pair(text: str, option: str) -> tuple[str, str]:
    table, sign, value = text.rpartition("=")
    if not sign or not table or not value:
        raise click.UsageError(f"{option} wants TABLE=…, not {text!r}")
    return table, value


def add_postgres(call: Call, name: str | None, stream: str | None, exist_ok: bool, options: dict[str, Any]) -> None:
    """Makes a source of tables; asks for what is missing, step by step, on a terminal."""
    own = of_tables(options)
    is_guided = at_terminal() and not call.as_curl and ("url" not in own or "tables" not in own)
    name = name or str(call.ask("name"))
    if "url" not in own:
        own["url"] = str(call.ask("url", hide=True))
    if is_guided:
        _guide(call, own)
    if "tables" not in own:
        own["tables"] = str(call.ask("tables")).replace(",", " ").split()
    if stream is None and is_guided:
        stream = str(call.ask("stream", default=name))
        if stream not in call.hg.streams() and "{table}" not in stream:
            call.hg.stream(stream, create=True)
            print_status(f"made the stream {stream}")
    stream = call.stream(stream)
    body = {"name": name, "stream": stream, "kind": "postgres", **own}
    if call.curl("POST", "sources", body={**body, **({"if_not_exists": True} if exist_ok else {})}):
        return
    made = call.hg.sources.add_postgres(name, stream, exist_ok=exist_ok, **own)
    if is_guided:
        print_status(f"`headgate up` reads it; `headgate source show {name}` says how far that is")
    call.print_data(made, name)


def _guide(call: Call, own: dict[str, Any]) -> None:
    """Looks at the database first, then asks which tables, and whether to send what they have."""
    found = call.hg.sources.check_postgres(own["url"], own.get("tables") or ["*"])
    server = [c for c in found if c.name not in ("replica identity", "tables")]
    for c in server:
        print_status(f"{'ok' if c.is_ok else 'missing':8} {c.found}" + ("" if c.is_ok else f"\n         {c.advice}"))
    if any(not c.is_ok for c in server):
        raise click.ClickException("this database cannot be read yet; nothing was changed")
    while "tables" not in own:
        tables = str(call.ask("tables (schema.table, schema.* or *)", default="*")).replace(",", " ").split()
        wrong = [c for c in call.hg.sources.check_postgres(own["url"], tables) if not c.is_ok]
        for c in wrong:
            print_status(f"missing  {c.found}\n         {c.advice}")
        if not wrong:
            own["tables"] = tables
    if "backfill" not in own and click.confirm("send the rows that there are, too?", default=True, err=True):
        own["backfill"] = True


def backfills(call: Call, source: str) -> None:
    """The tables whose rows are read or were."""
    found: Sequence[headgate.types.BackfillInfo] = call.hg.sources.backfills(source)
    columns = ("table", "state", "rows", "estimate", "deleted", "error")
    rows = [{c: getattr(b, c) for c in columns} for b in found]
    if found or call.json:
        call.print_rows(found, rows, columns, "nothing is read")
