"""Looking at messages: `headgate message` and `headgate peek`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .app import app
from .call import Call, command, consumer_arguments, given, options, stream_argument
from .consumers import path
from .exit_codes import NOTHING, NotThere
from .output import as_json_value, as_record, print_status, print_table

STATES = click.Choice(["available", "delivered", "parked", "done", "dead", "discarded"])
RANGE = (
    click.option("-n", "--limit", type=click.IntRange(min=1), default=10, show_default=True, help="At most so many."),
    click.option("--newest", is_flag=True, help="The newest first."),
    click.option("--before", type=int, metavar="SEQ", help="Only those before this seq."),
    click.option("--after", type=int, metavar="SEQ", help="Only those after this seq."),
)

if TYPE_CHECKING:
    from headgate.types import State


@app.group("message")
def messages() -> None:
    """Look at the messages of a stream, whoever has read them."""


def order(newest: bool) -> str:
    """As the HTTP API says it."""
    return "seq_desc" if newest else "seq_asc"


@command(messages, "list", curl=True)
@stream_argument
@options(RANGE)
@click.option("--filter", "pattern", metavar="PATTERN", help="Only keys like `orders.*.created` or `orders.>`.")
def show_all(
    call: Call, stream: str | None, limit: int, newest: bool, before: int | None, after: int | None, pattern: str | None
) -> int | None:
    """List messages. With --json each is a line that `headgate send STREAM -` takes."""
    stream = call.stream(stream)
    query = {"limit": limit, "sort": order(newest), "key_pattern": pattern, "before": before, "after": after}
    if call.curl("GET", "streams", stream, "messages", query=given(query)):
        return None
    found = call.hg.insights.messages(
        stream, limit, newest_first=newest, filter=pattern, before=before, after=after
    )  # fmt: skip
    call.print_messages([as_record(m) for m in found], ("seq", "created_at", "key", "data"))
    return None if found else NOTHING


@command(messages, "show", curl=True)
@stream_argument
@click.argument("seq", required=False, type=int, metavar="SEQ")
def show(call: Call, stream: str | None, seq: int | None) -> None:
    """Show a message, and its state for each consumer."""
    stream = call.stream(stream)
    seq = call.ask("seq", type=int) if seq is None else seq
    if call.curl("GET", "streams", stream, "messages", seq):
        return
    found = call.hg.insights.messages(stream, 1, after=seq - 1, before=seq + 1)
    if not found:
        raise NotThere(
            f"stream {stream!r} has no message {seq}",
            hint="it was removed, replaced or never committed; `headgate message list` shows what there is",
        )
    states = call.hg.insights.message(stream, seq)
    if call.json:
        call.print_data({**as_json_value(found[0]), "consumers": states})
        return
    call.print_data(found[0])
    if states:
        click.echo()
        print_table(
            [as_record(s) for s in states], ("consumer", "state", "attempt", "visible_at", "worker", "last_error")
        )


@command(messages, "life", curl=True)
@stream_argument
@click.argument("seq", required=False, type=int, metavar="SEQ")
def life(call: Call, stream: str | None, seq: int | None) -> None:
    """Show all that is known of a message: sent, delivered, failed, parked, dead, done, for each consumer.

    In the order of time; what is so now, since no time that is known, comes last.
    """
    stream = call.stream(stream)
    seq = call.ask("seq", type=int) if seq is None else seq
    if call.curl("GET", "streams", stream, "messages", seq, "life"):
        return
    found = call.hg.insights.message_life(stream, seq)
    if not found:
        raise NotThere(
            f"stream {stream!r} has no message {seq} yet", hint="`headgate message list` shows what there is"
        )
    columns = ("at", "consumer", "event", "attempt", "worker", "until", "error")
    call.print_rows(found, [as_record(e) for e in found], columns, "")


@command(messages, "attempts", curl=True)
@stream_argument
@click.argument("seq", required=False, type=int, metavar="[SEQ]")
@click.option("--consumer", metavar="CONSUMER", help="Only attempts of this consumer.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@click.option("--before", type=int, metavar="ID", help="Only those before this id.")
def attempts(
    call: Call, stream: str | None, seq: int | None, consumer: str | None, limit: int, before: int | None
) -> int | None:
    """List attempts that failed, the newest first: of one message, or of all."""
    stream = call.stream(stream)
    query = given({"seq": seq, "consumer": consumer, "limit": limit, "before": before})
    if call.curl("GET", "streams", stream, "attempts", query=query):
        return None
    found = call.hg.insights.attempts(stream, seq, consumer=consumer, limit=limit, before=before)
    columns = ("id", "at", "consumer", "seq", "attempt", "outcome", "is_dead", "worker", "error")
    call.print_rows(found, [as_record(a) for a in found], columns, "no attempt has failed")
    return None if found else NOTHING


@command(app, "peek", curl=True)
@consumer_arguments
@options(RANGE)
@click.option("--state", "states", type=STATES, multiple=True, help="Only messages in this state.")
def peek(
    call: Call,
    stream: str | None,
    consumer: str | None,
    limit: int,
    newest: bool,
    before: int | None,
    after: int | None,
    states: tuple[State, ...],
) -> int | None:
    """Look at messages and their state for a consumer, without any effect."""
    stream, consumer = call.consumer(stream, consumer)
    query = {"limit": limit, "sort": order(newest), "states": ",".join(states) or None}
    query |= {"before": before, "after": after}
    if call.curl("GET", *path(stream, consumer), "messages", query=given(query)):
        return None
    found = call.hg.insights.peek(
        stream, consumer, limit, newest_first=newest, states=list(states) or None, before=before, after=after
    )
    columns: tuple[str, ...] = ("seq", "state", "attempt", "visible_at", "key", "data")
    if any(m.last_error for m in found):
        columns = (*columns[:-1], "last_error", "data")
    call.print_messages([as_record(m) for m in found], columns)
    if found.next is not None:
        print_status(f"many messages were looked at; go on with {'--before' if newest else '--after'} {found.next}")
    return None if found else NOTHING
