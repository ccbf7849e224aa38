"""`headgate source`: what brings messages into streams from elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from . import values
from .app import app
from .call import Call, command, given, options, stream_argument
from .complete import source_names, stream_names

SCHEMES = click.Choice(["standard", "github", "stripe", "hmac", "none"])
SOURCE = click.argument("source", required=False, metavar="SOURCE", shell_complete=source_names)
COLUMNS = ("name", "kind", "stream", "scheme", "secret", "created_at")

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
    """Make, list, change and remove sources: webhooks that become messages."""


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
@options(SETTINGS)
@click.option("--if-not-exists", is_flag=True, help="Leave a source of this name as it is.")
def add(call: Call, name: str | None, stream: str | None, if_not_exists: bool, **settings: Any) -> None:
    """Make a webhook source: POST /api/webhooks/NAME of the HTTP server sends to a stream."""
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


@command(sources, "list", curl=True)
def show_all(call: Call) -> None:
    """List the sources."""
    if call.curl("GET", "sources"):
        return
    found = call.hg.sources.all()
    call.say_rows(found, [{c: getattr(s, c) for c in COLUMNS} for s in found], COLUMNS, "there are no sources yet")


@command(sources, "show", curl=True)
@SOURCE
def show(call: Call, source: str | None) -> None:
    """Show a source. Of its secrets only the ends are shown."""
    source = source or str(call.ask("source"))
    if not call.curl("GET", "sources", source):
        call.say(call.hg.sources.get(source))


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
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(call: Call, source: str | None, yes: bool) -> None:
    """Remove a source. What it brought stays."""
    source = source or str(call.ask("source"))
    if call.curl("DELETE", "sources", source):
        return
    call.hg.sources.get(source)
    call.confirm(f"remove the source {source}?", yes)
    call.hg.sources.drop(source)
    call.say({"removed": source}, source)
