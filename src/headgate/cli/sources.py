"""`headgate source`: what brings messages into streams from elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

import headgate

from . import values
from .app import app
from .call import Call, command, given, options, stream_argument
from .complete import source_names, stream_names

SCHEMES = click.Choice(["standard", "github", "stripe", "hmac", "none"])
SOURCE = click.argument("source", required=False, metavar="SOURCE", shell_complete=source_names)
COLUMNS = ("name", "kind", "stream", "scheme", "secret", "state", "lag", "created_at")

SETTINGS = (
    click.option("--scheme", type=SCHEMES, help="How webhooks are signed. Default: standard (Standard Webhooks)."),
    click.option(
        "--secret", multiple=True, metavar="SECRET", envvar="HEADGATE_SOURCE_SECRET",
        help="What they are signed with; several while it is being changed.",
    ),
    click.option("--key", metavar="WHERE", help="The key: a path in the JSON body (customer.id), or header:X-Name."),
    click.option("--id", metavar="WHERE", help="The delivery's id, which tells repetitions. Default: the scheme's."),
    click.option("--channel", metavar="WHERE", help="The channel, where the stream has lanes by channel."),
    click.option("--keep-header", "headers", multiple=True, metavar="NAME", help="Keep this header of the request."),
    click.option("--signature-header", metavar="NAME", help="Of the scheme hmac: the header with the signature."),
    click.option("--signature-algorithm", type=click.Choice(["sha256", "sha1", "sha512"]), help="Default: sha256."),
    click.option("--signature-encoding", type=click.Choice(["hex", "base64"]), help="Default: hex."),
    click.option("--signature-prefix", metavar="TEXT", help="What stands before the signature, such as sha256=."),
    click.option("--tolerance", type=values.time, help="How far off a timestamp may be. Default: 5m."),
    click.option("--body", type=click.Choice(["json", "any"]), help="Whether to take other bodies than JSON."),
    click.option("--rate-limit", type=int, help="So many messages a second."),
)  # fmt: skip
TABLES = (
    click.option("--url", metavar="URL", envvar="HEADGATE_SOURCE_URL", help="Of postgres: the database to read."),
    click.option(
        "--table", "tables", multiple=True, metavar="TABLE",
        help="Of postgres: a table (public.orders), a schema (public.*) or all (*). Repeatable.",
    ),
)  # fmt: skip
CLEARABLE = ("key", "id", "channel", "headers", "signature", "tolerance", "body", "rate_limit")


@app.group("source")
def sources() -> None:
    """Make, list, change and remove sources: webhooks, and changes of tables, that become messages."""


def wanted(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of what was given: how it is signed, and the settings."""
    secrets = list(settings.pop("secret"))
    form = {name: settings.pop(f"signature_{name}") for name in ("header", "algorithm", "encoding", "prefix")}
    signing = given({"scheme": settings.pop("scheme"), "secret": secrets[0] if len(secrets) == 1 else secrets or None})
    headers = list(settings.pop("headers")) or None
    return signing, given({**settings, "headers": headers, "signature": given(form) or None})


def as_seconds(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as the SDK takes them."""
    return {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in settings.items()}


@command(sources, "add", curl=True)
@click.argument("name", required=False, metavar="NAME")
@stream_argument
@click.option(
    "--kind", type=click.Choice(["webhook", "postgres"]), default="webhook", show_default=True, help="What it is."
)
@options(TABLES)
@click.option("--publication", metavar="NAME", help="Of postgres: use this publication instead of making one.")
@click.option("--slot", metavar="NAME", help="Of postgres: use this replication slot instead of making one.")
@click.option("--backfill", is_flag=True, help="Of postgres: send the rows that there are, too.")
@options(SETTINGS)
@click.option("--if-not-exists", is_flag=True, help="Leave a source of this name as it is.")
def add(call: Call, name: str | None, stream: str | None, kind: str, if_not_exists: bool, **settings: Any) -> None:
    """Make a source of a stream's messages.

    A webhook source is the URL /api/webhooks/NAME of the HTTP server. A postgres source is the changes of tables of a
    PostgreSQL database: `headgate up` reads them.
    """
    read = {option: settings.pop(option) for option in ("url", "tables", "publication", "slot", "backfill")}
    if kind == "postgres":
        wanted(settings)
        add_postgres(call, name, stream, if_not_exists, **read)
        return
    if read["tables"]:
        raise click.UsageError("tables are of sources of kind postgres: say --kind postgres")
    if name is None:  # guided
        name = str(call.ask("name"))
        stream = call.stream(stream)
        settings["scheme"] = settings["scheme"] or call.ask("scheme", default="standard", type=SCHEMES)
        if settings["scheme"] != "none" and not settings["secret"]:
            settings["secret"] = (str(call.ask("secret", hide=True)),)
    stream = call.stream(stream)
    signing, chosen = wanted(settings)
    leave = {"if_not_exists": True} if if_not_exists else {}
    if call.curl("POST", "sources", body={"name": name, "stream": stream, **signing, **chosen, **leave}):
        return
    made = call.hg.sources.create(name, stream, **signing, settings=as_seconds(chosen), exist_ok=if_not_exists)
    call.say(made, name)


def add_postgres(
    call: Call,
    name: str | None,
    stream: str | None,
    if_not_exists: bool,
    url: str | None,
    tables: tuple[str, ...],
    publication: str | None,
    slot: str | None,
    backfill: bool,
) -> None:
    """Makes a source of tables."""
    name = name or str(call.ask("name"))
    stream = call.stream(stream)
    url = url or str(call.ask("url", hide=True))
    chosen = list(tables) or str(call.ask("tables")).replace(",", " ").split()
    own = given({"publication": publication, "slot": slot, "backfill": backfill or None})
    leave = {"if_not_exists": True} if if_not_exists else {}
    body = {"name": name, "stream": stream, "kind": "postgres", "url": url, "tables": chosen, **own, **leave}
    if call.curl("POST", "sources", body=body):
        return
    made = call.hg.sources.add_postgres(name, stream, url=url, tables=chosen, exist_ok=if_not_exists, **own)
    call.say(made, name)


@command(sources, "check")
@options(TABLES)
def check(call: Call, url: str | None, tables: tuple[str, ...]) -> int:
    """Look whether tables of a PostgreSQL database can be read, and what to do if not. Changes nothing."""
    url = url or str(call.ask("url", hide=True))
    found = call.hg.sources.check_postgres(url, list(tables) or ["*"])
    rows = [
        {"check": c.name, "ok": "yes" if c.is_ok else "no", "found": c.found, "advice": c.advice or ""} for c in found
    ]
    call.say_rows(found, rows, ("check", "ok", "found", "advice"), "there is nothing to check")
    return 0 if all(c.is_ok for c in found) else 3


@command(sources, "list", curl=True)
def show_all(call: Call) -> None:
    """List the sources."""
    if call.curl("GET", "sources"):
        return
    found: list[headgate.SourceInfo | headgate.PostgresSourceInfo] = [*call.hg.sources.all()]
    found += call.hg.sources.all_postgres()
    found.sort(key=lambda s: s.name)
    call.say_rows(found, [{c: getattr(s, c, "") for c in COLUMNS} for s in found], COLUMNS, "there are no sources yet")


@command(sources, "show", curl=True)
@SOURCE
def show(call: Call, source: str | None) -> None:
    """Show a source. Of its secrets only the ends are shown."""
    source = source or str(call.ask("source"))
    if not call.curl("GET", "sources", source):
        call.say(find(call, source))


def find(call: Call, name: str) -> headgate.SourceInfo | headgate.PostgresSourceInfo:
    """A source of either kind."""
    try:
        return call.hg.sources.get(name)
    except headgate.SourceNotFound:
        return call.hg.sources.postgres(name)


@command(sources, "backfill", curl=True)
@SOURCE
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only of this table. Repeatable.")
@click.option("--status", is_flag=True, help="Only say how far it is.")
def backfill(call: Call, source: str | None, tables: tuple[str, ...], status: bool) -> None:
    """Send all rows of a source's tables, beside their changes; asked for again, it begins anew."""
    source = source or str(call.ask("source"))
    chosen = list(tables) or None
    if call.curl("GET" if status else "POST", "sources", source, "backfill", body=given({"tables": chosen}) or None):
        return
    if not status:
        call.hg.sources.backfill(source, chosen)
    call.hg.sources.postgres(source)
    found = call.hg.sources.backfills(source)
    columns = ("table", "state", "rows", "estimate", "error")
    call.say_rows(found, [{c: getattr(b, c) for c in columns} for b in found], columns, "nothing is read")


@command(sources, "pause", curl=True)
@SOURCE
def pause(call: Call, source: str | None) -> None:
    """Stop reading the tables of a source. Meanwhile their database keeps its WAL, which takes room."""
    source = source or str(call.ask("source"))
    if call.curl("POST", "sources", source, "pause"):
        return
    call.hg.sources.pause(source)
    call.say({"paused": source}, source)


@command(sources, "resume", curl=True)
@SOURCE
def resume(call: Call, source: str | None) -> None:
    """Read the tables of a source again, from where it was."""
    source = source or str(call.ask("source"))
    if call.curl("POST", "sources", source, "resume"):
        return
    call.hg.sources.resume(source)
    call.say({"resumed": source}, source)


@command(sources, "edit", curl=True)
@SOURCE
@click.option("--stream", metavar="STREAM", shell_complete=stream_names, help="Send to this stream from now on.")
@options(SETTINGS)
@click.option("--clear", type=click.Choice(CLEARABLE), multiple=True, help="Put a setting back to none.")
def edit(call: Call, source: str | None, stream: str | None, clear: tuple[str, ...], **settings: Any) -> None:
    """Change settings of a source."""
    source = source or str(call.ask("source"))
    signing, chosen = wanted(settings)
    changed = {**given({"stream": stream}), **signing}
    chosen.update(dict.fromkeys(clear))
    if not changed and not chosen:
        raise click.UsageError("no setting was given")
    if signing.get("scheme") == "none" and "secret" not in signing:
        changed["secret"] = []
    if call.curl("PATCH", "sources", source, body={**changed, **chosen}):
        return
    call.say(call.hg.sources.alter(source, **changed, settings=as_seconds(chosen)))


@command(sources, "remove", curl=True)
@SOURCE
@click.option("--forget", is_flag=True, help="Of postgres: leave its slot and publication where they are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(call: Call, source: str | None, forget: bool, yes: bool) -> None:
    """Remove a source. What it brought stays; the slot and publication that were made for it go."""
    source = source or str(call.ask("source"))
    if call.curl("DELETE", "sources", source, query={"forget": "true"} if forget else None):
        return
    found = find(call, source)
    call.confirm(f"remove the source {source}?", yes)
    if isinstance(found, headgate.PostgresSourceInfo):
        call.hg.sources.remove_postgres(source, forget=forget)
    else:
        call.hg.sources.drop(source)
    call.say({"removed": source}, source)
