"""`headgate consumer`: consumers, their settings and positions."""

from __future__ import annotations

from typing import Any

import click

import headgate

from ..settings import CONSUMER, changeable, clearable
from . import values
from .app import app
from .call import Call, command, consumer_arguments, given, options, stream_argument
from .lake_replay import offer_replay
from .output import about, as_record, print_status
from .settings import options_of, refusals

ORDERS = click.Choice(CONSUMER["order"].choices)

PUSH = (
    click.option("--push-url", metavar="URL", help="Have the HTTP server post each message there."),
    click.option(
        "--push-secret", multiple=True, metavar="SECRET", envvar="HEADGATE_PUSH_SECRET",
        help="Sign with it: whsec_ and base64; several while it is being changed. A new consumer gets one.",
    ),
    click.option("--push-concurrency", type=int, help="So many requests at once, of each server. Default: 8."),
    click.option("--push-timeout", type=values.time, help="How long an answer may take. Default: 15s."),
    click.option("--push-header", type=values.header, multiple=True, help="Send it along: 'NAME: VALUE'."),
)  # fmt: skip


@app.group("consumer")
def consumers() -> None:
    """Make, list, change, move and remove consumers."""


def path(stream: str, consumer: str) -> tuple[str, ...]:
    """The consumer in the HTTP API."""
    return ("streams", stream, "consumers", consumer)


def wanted(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the SDK takes them."""
    push = {name: settings.pop(f"push_{name}") for name in ("url", "secret", "concurrency", "timeout", "header")}
    timeout, headers = push.pop("timeout"), dict(push.pop("header"))
    secrets = list(push.pop("secret"))
    found = given({
        **push, "secret": secrets[0] if len(secrets) == 1 else secrets or None, "headers": headers or None,
        "timeout": None if timeout is None else timeout.total_seconds(),
    })  # fmt: skip
    return given({**settings, "filter": list(settings["filter"]) or None, "push": found or None})


def as_body(settings: dict[str, Any]) -> dict[str, Any]:
    """The same for the HTTP API, where lengths of time are milliseconds."""
    if "push" not in settings or "timeout" not in settings["push"]:
        return settings
    push = dict(settings["push"])
    milliseconds = round(push.pop("timeout") * 1000)
    return {**settings, "push": {**push, "timeout_ms": milliseconds}}


@command(consumers, "add", curl=True)
@stream_argument
@click.argument("name", required=False, metavar="NAME")
@options(options_of(CONSUMER), PUSH)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Leave a consumer of this name as it is; it must have the settings that are given.",
)
@click.option("--from-lake", is_flag=True, help="Prepare a replay of what only an archive still has, without asking.")
def add(
    call: Call, stream: str | None, name: str | None, if_not_exists: bool, from_lake: bool, **settings: Any
) -> None:
    """Make a consumer of a stream.

    When --start lies before what the stream still has, and an archive has it, a replay into a stream of the
    consumer's own is offered.
    """
    stream = call.stream(stream)
    if name is None:  # guided
        name = call.ask("name")
        pattern = call.ask("filter", default="all keys") if not settings["filter"] else None
        settings["filter"] = settings["filter"] or ([pattern] if pattern != "all keys" else [])
        settings["order"] = call.ask("order", default=settings["order"] or "none", type=ORDERS)
        settings["ack_wait"] = call.ask("ack wait", default=settings["ack_wait"] or "30s", type=values.time)
    chosen = wanted(settings)
    made = None
    if "push" in chosen and "secret" not in chosen["push"] and not (if_not_exists and _pushes(call, stream, name)):
        from ..webhooks import new_secret  # here: no other command needs it

        made = chosen["push"]["secret"] = new_secret()
    leave = {"if_not_exists": True} if if_not_exists else {}
    body, without = {"name": name, **as_body(chosen), **leave}, {"--from-lake": from_lake}
    if call.curl("POST", "streams", stream, "consumers", body=body, without=without):
        return
    call.hg.stream(stream).consumer(name, create=True, exist_ok=if_not_exists, **chosen)
    offer_replay(call, stream, name, chosen, from_lake)
    if made is not None:
        print_status(f"it signs with {made}: the receiver needs it, and it is not shown again")
    call.print_data(call.hg.insights.consumer(stream, name), name)


def _pushes(call: Call, stream: str, consumer: str) -> bool:
    """Whether there is such a consumer and it pushes: then it has a secret."""
    if call.as_curl:
        return False
    try:
        return call.hg.insights.consumer(stream, consumer).push is not None
    except (headgate.errors.StreamNotFound, headgate.errors.ConsumerNotFound):
        return False


@command(consumers, "list", curl=True)
@click.argument("stream", required=False, metavar="[STREAM]")
def show_all(call: Call, stream: str | None) -> None:
    """List the consumers of a stream, or of all streams."""
    if call.as_curl:
        stream = call.stream(stream)
    if call.curl("GET", "streams", str(stream), "consumers"):
        return
    found = call.hg.insights.consumers(stream)
    columns: tuple[str, ...] = (
        "stream", "name", "lag", "in_flight", "parked", "dead", "rate", "oldest_unacked", "paused",
    )  # fmt: skip
    if any(k.sampled_at for k in found):
        columns += ("sampled_at",)
    rows = [{**{c: getattr(k, c) for c in columns}, "lag": about(k.lag, k.exact)} for k in found]
    call.print_rows(found, rows, columns, "there are no consumers yet")


@command(consumers, "show", curl=True)
@consumer_arguments
def show(call: Call, stream: str | None, consumer: str | None) -> None:
    """Show a consumer: its settings and how far it is."""
    stream, consumer = call.consumer(stream, consumer)
    if not call.curl("GET", *path(stream, consumer)):
        _say(call, stream, consumer)


def _say(call: Call, stream: str, consumer: str) -> None:
    """The consumer; for people each fact of its pushing in a line, such as why the last attempt failed."""
    info = call.hg.insights.consumer(stream, consumer)
    if call.json or not info.push:
        call.print_data(info)
        return
    record = as_record(info)
    pushed = {f"push {name}": value for name, value in record.pop("push").items()}
    call.print_data({**record, **pushed})


@command(consumers, "edit", curl=True)
@consumer_arguments
@options(options_of(changeable(CONSUMER)), PUSH, refusals(CONSUMER))
@click.option("--clear", type=click.Choice(clearable(CONSUMER)), multiple=True, help="Put a setting back to none.")
def edit(call: Call, stream: str | None, consumer: str | None, clear: tuple[str, ...], **settings: Any) -> None:
    """Change settings of a consumer.

    Its order, and whether it is leased, are settled when it is made; `headgate consumer seek` moves it.
    """
    stream, consumer = call.consumer(stream, consumer)
    changed = wanted(settings)
    if not changed and not clear:
        raise click.UsageError("no setting was given")
    if call.curl("PATCH", *path(stream, consumer), body={**as_body(changed), **dict.fromkeys(clear)}):
        return
    call.hg.stream(stream).consumer(consumer).alter(**changed, clear=clear)
    _say(call, stream, consumer)


@command(consumers, "remove", curl=True)
@consumer_arguments
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(call: Call, stream: str | None, consumer: str | None, yes: bool) -> None:
    """Remove a consumer and its progress. Its dead letters stay."""
    stream, consumer = call.consumer(stream, consumer)
    if call.curl("DELETE", *path(stream, consumer)):
        return
    found = call.hg.stream(stream).consumer(consumer)
    call.confirm(f"remove the consumer {consumer} of {stream} and its progress?", yes)
    found.drop()
    call.print_data({"removed": consumer}, consumer)


@command(consumers, "pause", curl=True)
@consumer_arguments
def pause(call: Call, stream: str | None, consumer: str | None) -> None:
    """Hand out nothing until it is resumed."""
    stream, consumer = call.consumer(stream, consumer)
    if not call.curl("POST", *path(stream, consumer), "pause"):
        call.hg.stream(stream).consumer(consumer).pause()
        call.print_data({"paused": True}, consumer)


@command(consumers, "resume", curl=True)
@consumer_arguments
def resume(call: Call, stream: str | None, consumer: str | None) -> None:
    """Hand out messages again."""
    stream, consumer = call.consumer(stream, consumer)
    if not call.curl("POST", *path(stream, consumer), "resume"):
        call.hg.stream(stream).consumer(consumer).resume()
        call.print_data({"paused": False}, consumer)


@command(consumers, "workers", curl=True)
@consumer_arguments
def workers(call: Call, stream: str | None, consumer: str | None) -> None:
    """List the workers of a leased consumer, and which lanes they have."""
    stream, consumer = call.consumer(stream, consumer)
    if call.curl("GET", *path(stream, consumer), "workers"):
        return
    call.hg.stream(stream).consumer(consumer)
    found = call.hg.insights.workers(stream, consumer)
    columns = ("name", "in_flight", "joined_at", "seen_at", "until", "lanes")
    call.print_rows(found, [{c: getattr(w, c) for c in columns} for w in found], columns, "it has no workers")


@command(consumers, "seek", curl=True)
@consumer_arguments
@click.argument("position", type=values.position, required=False, metavar="POSITION")
def seek(call: Call, stream: str | None, consumer: str | None, position: str | None) -> None:
    """Move a consumer to the beginning, the end, a seq or a time.

    What was in flight or parked is forgotten, and what lies behind the position comes again.
    """
    stream, consumer = call.consumer(stream, consumer)
    position = position or values.position(call.ask("position", default="beginning"))
    to = int(position) if position.isdecimal() else position
    if not call.curl("POST", *path(stream, consumer), "seek", body={"to": to}):
        call.hg.stream(stream).consumer(consumer).seek(to)
        call.print_data({"position": to}, to)
