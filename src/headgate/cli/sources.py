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
from .table_options import LIMITS, MAKING, OF_TABLES, ROUTES, TABLES, add_postgres, backfills, of_tables

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
@options(MAKING, ROUTES, LIMITS)
@click.option("--backfill", is_flag=True, help="Of postgres: send the rows that there are, too.")
@options(SETTINGS)
@click.option("--if-not-exists", is_flag=True, help="Leave a source of this name as it is.")
def add(call: Call, name: str | None, stream: str | None, kind: str, if_not_exists: bool, **settings: Any) -> None:
    """Make a source of a stream's messages.

    A webhook source is the URL /api/webhooks/NAME of the HTTP server. A postgres source is the changes of tables of a
    PostgreSQL database: `headgate up` reads them.
    """
    read = {option: settings.pop(option) for option in (*OF_TABLES, "publication", "slot")}
    if kind == "postgres":
        wanted(settings)
        add_postgres(call, name, stream, if_not_exists, read)
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
    call.print_data(made, name)


@command(sources, "list", curl=True)
def show_all(call: Call) -> None:
    """List the sources."""
    if call.curl("GET", "sources"):
        return
    found: list[headgate.types.SourceInfo | headgate.types.PostgresSourceInfo] = [*call.hg.sources.all()]
    found += call.hg.sources.all_postgres()
    found.sort(key=lambda s: s.name)
    call.print_rows(
        found, [{c: getattr(s, c, "") for c in COLUMNS} for s in found], COLUMNS, "there are no sources yet"
    )


@command(sources, "show", curl=True)
@SOURCE
def show(call: Call, source: str | None) -> None:
    """Show a source. Of its secrets only the ends are shown."""
    source = source or str(call.ask("source"))
    if call.curl("GET", "sources", source):
        return
    found = find(call, source)
    call.print_data(found)
    if isinstance(found, headgate.types.PostgresSourceInfo) and not call.json:
        backfills(call, source)


def find(call: Call, name: str) -> headgate.types.SourceInfo | headgate.types.PostgresSourceInfo:
    """A source of either kind."""
    try:
        return call.hg.sources.get(name)
    except headgate.errors.SourceNotFound:
        return call.hg.sources.postgres(name)


@command(sources, "edit", curl=True)
@SOURCE
@click.option("--stream", metavar="STREAM", shell_complete=stream_names, help="Send to this stream from now on.")
@options(TABLES, ROUTES, LIMITS)
@click.option("--backfill", is_flag=True, help="Of postgres: send the rows of tables that are new to it.")
@options(SETTINGS)
@click.option("--clear", type=click.Choice(CLEARABLE), multiple=True, help="Put a setting back to none.")
def edit(call: Call, source: str | None, stream: str | None, clear: tuple[str, ...], **settings: Any) -> None:
    """Change settings of a source. The tables of one of kind postgres are all that it has then."""
    source = source or str(call.ask("source"))
    read = of_tables({option: settings.pop(option) for option in OF_TABLES})
    if read:
        wanted(settings)
        read |= given({"stream": stream})
        if not call.curl("PATCH", "sources", source, body=read):
            call.print_data(call.hg.sources.alter_postgres(source, **read))
        return
    signing, chosen = wanted(settings)
    changed = {**given({"stream": stream}), **signing}
    chosen.update(dict.fromkeys(clear))
    if not changed and not chosen:
        raise click.UsageError("no setting was given")
    if signing.get("scheme") == "none" and "secret" not in signing:
        changed["secret"] = []
    if call.curl("PATCH", "sources", source, body={**changed, **chosen}):
        return
    if (
        changed.keys() == {"stream"}
        and not chosen
        and isinstance(find(call, source), headgate.types.PostgresSourceInfo)
    ):
        call.print_data(call.hg.sources.alter_postgres(source, **changed))
        return
    call.print_data(call.hg.sources.alter(source, **changed, settings=as_seconds(chosen)))


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
    if isinstance(found, headgate.types.PostgresSourceInfo):
        call.hg.sources.remove_postgres(source, forget=forget)
    else:
        call.hg.sources.drop(source)
    call.print_data({"removed": source}, source)


from . import table_sources  # noqa: E402, F401 - more commands of this group
