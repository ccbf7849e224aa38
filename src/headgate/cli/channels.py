"""`headgate channel`: the channels (or keys) of a consumer, and their limits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

import headgate

from . import values
from .app import app
from .call import Call, command, consumer_arguments, given
from .consumers import path
from .exit_codes import NotThere
from .output import as_record, print_status

CHANNEL = click.argument("channel", required=False, metavar="CHANNEL")
CLEARABLE = ("max_concurrency", "release_interval")
COLUMNS = (
    "channel", "state", "waiting", "oldest", "in_flight", "parked", "max_concurrency", "release_interval", "delivered",
    "served_at",
)  # fmt: skip
if TYPE_CHECKING:
    from headgate.types import ChannelSort

SORTS = click.Choice(["waiting", "oldest", "name"])


@app.group("channel")
def channels() -> None:
    """Look at and limit the channels of a stream with lanes by channel (or the keys of one with lanes by key)."""


@command(channels, "list", curl=True)
@consumer_arguments
@click.option(
    "--sort", type=SORTS, default="waiting", show_default=True, help="Most waiting first, oldest, or by name."
)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@click.option("--after", metavar="POSITION", help="Go on after the page before, which says where.")
def show_all(
    call: Call, stream: str | None, consumer: str | None, sort: ChannelSort, limit: int, after: str | None
) -> None:
    """List the channels and how much waits in each; ~ is an estimate."""
    stream, consumer = call.consumer(stream, consumer)
    query = {"sort": sort, "limit": limit, "after": after}
    if call.curl("GET", *path(stream, consumer), "channels", query=given(query)):
        return
    found = call.hg.insights.channels(stream, consumer, limit=limit, sort=sort, after=after)
    rows = [as_record(c) | {"waiting": c.waiting if c.exact else f"~{c.waiting}"} for c in found]
    call.print_rows(found, rows, COLUMNS, "nothing is known of any channel")
    if found and not found[0].complete:
        print_status("so much waits that the order comes from a sample; `headgate channel show` counts one channel")
    if found.next is not None:
        print_status(f"there may be more: go on with --after '{found.next}'")


@command(channels, "show", curl=True)
@consumer_arguments
@CHANNEL
def show(call: Call, stream: str | None, consumer: str | None, channel: str | None) -> None:
    """Show a channel."""
    stream, consumer = call.consumer(stream, consumer)
    channel = channel or str(call.ask("channel"))
    if not call.curl("GET", *path(stream, consumer), "channels", channel):
        call.print_data(_find(call, stream, consumer, channel))


@command(channels, "set", curl=True)
@consumer_arguments
@CHANNEL
@click.option("--max-concurrency", type=int, help="So many messages in flight; 0 holds the channel back.")
@click.option("--release-interval", type=values.time, help="One message in this time.")
@click.option("--clear", type=click.Choice(CLEARABLE), multiple=True, help="Put a limit back to the consumer's own.")
def set_limits(
    call: Call,
    stream: str | None,
    consumer: str | None,
    channel: str | None,
    max_concurrency: int | None,
    release_interval: timedelta | None,
    clear: tuple[str, ...],
) -> None:
    """Limit a channel. A limit that is left out stays as it is."""
    stream, consumer = call.consumer(stream, consumer)
    channel = channel or str(call.ask("channel"))
    limits = given({"max_concurrency": max_concurrency, "release_interval": release_interval})
    if not limits and not clear:
        raise click.UsageError("no limit was given")
    if call.curl("PUT", *path(stream, consumer), "channels", channel, body={**limits, **dict.fromkeys(clear)}):
        return
    call.hg.stream(stream).consumer(consumer).set_channel(channel, **limits, clear=clear)
    found = call.hg.insights.channels(stream, consumer, channel, 1)
    call.print_data(found[0] if found else {"channel": channel, **dict.fromkeys(CLEARABLE)}, channel)


def _find(call: Call, stream: str, consumer: str, channel: str) -> headgate.types.ChannelInfo:
    for found in call.hg.insights.channels(stream, consumer, channel):
        return found
    raise NotThere(
        f"nothing is known of the channel {channel!r} of {stream}/{consumer}",
        hint="it has no messages waiting and no limits of its own; `headgate channel list` shows those that have",
    )
