"""`headgate discard`: messages that a consumer is never to get."""

from __future__ import annotations

from datetime import timedelta

import click

from . import values
from .app import app
from .call import Call, command, consumer_arguments, given
from .consumers import path
from .exit_codes import NOTHING
from .progress import progress


@command(app, "discard", curl=True)
@consumer_arguments
@click.argument("numbers", type=int, nargs=-1, metavar="[SEQ]...")
@click.option(
    "--seq", "seqs", type=int, multiple=True, metavar="SEQ", help="This message, as SEQ. Can be given more than once."
)
@click.option(
    "--filter", "patterns", multiple=True, metavar="PATTERN",
    help="Those with keys like `orders.*.created` or `orders.>`. Can be given more than once.",
)  # fmt: skip
@click.option("--channel", metavar="NAME", help="Those of this channel (or key, by the stream's lanes).")
@click.option("--older-than", type=values.time, metavar="TIME", help="Those sent longer ago than this.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def discard(
    call: Call,
    stream: str | None,
    consumer: str | None,
    numbers: tuple[int, ...],
    seqs: tuple[int, ...],
    patterns: tuple[str, ...],
    channel: str | None,
    older_than: timedelta | None,
    everything: bool,
    yes: bool,
) -> int | None:
    """Give up messages for good that are unread, delayed, parked or in flight, and fit all options."""
    stream, consumer = call.consumer(stream, consumer)
    seqs = (*numbers, *seqs)
    if bool(seqs or patterns or channel is not None or older_than is not None) == everything:
        raise click.UsageError("say which messages: SEQ, --filter, --channel, --older-than, or --all")
    which = given({"seqs": list(seqs) or None, "filter": list(patterns) or None, "channel": channel})
    which |= given({"older_than": older_than})
    if call.curl("POST", *path(stream, consumer), "discard", body=which | ({"all": True} if everything else {})):
        return None
    reader = call.hg.stream(stream).consumer(consumer)
    lag = reader.info().lag
    total = min(lag, len(seqs)) if seqs else lag
    call.confirm(f"discard up to {total} messages of {stream}/{consumer}?", yes)
    discarded, held, go_on = 0, 0, None
    with progress("discard", total) as advance:
        while True:
            step = reader.discard_some(all=everything, go_on=go_on, **which)
            discarded, held, go_on = discarded + step.discarded, held + step.held, step.more
            advance(step.discarded)
            if go_on is None:
                break
    call.print_data(
        {"discarded": discarded, "held": held},
        f"discarded {discarded}" + (f", passed over {held} that an open transaction holds" if held else ""),
    )
    return None if discarded else NOTHING
