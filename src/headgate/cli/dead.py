"""`headgate dead`: dead letters, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

import click

from .app import app
from .call import Call, command, consumer_arguments, given, options
from .consumers import path
from .exit_codes import NOTHING
from .output import as_record
from .progress import progress

PART = 1000  # dead letters that are moved in one transaction

WHICH = (
    click.argument("seqs", nargs=-1, type=int, metavar="[SEQ]..."),
    click.option(
        "--filter", "pattern", metavar="PATTERN", help="Those with keys like `orders.*.created` or `orders.>`."
    ),
    click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many, the oldest first."),
    click.option("--all", "everything", is_flag=True, help="All of them."),
)


@app.group("dead")
def dead() -> None:
    """List, redrive and purge dead letters: messages that failed max_deliver times."""


@command(dead, "list", curl=True)
@consumer_arguments
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@click.option("--after", type=int, default=0, metavar="SEQ", help="Only those after this seq.")
def show_all(call: Call, stream: str | None, consumer: str | None, limit: int, after: int) -> int | None:
    """List the dead letters of a consumer, oldest first. With --json, one a line."""
    stream, consumer = call.consumer(stream, consumer)
    query = {"limit": limit, "after": after} if after else {"limit": limit}
    if call.curl("GET", *path(stream, consumer), "dead", query=query):
        return None
    found = call.hg.insights.dead_letters(stream, consumer, limit, after=after)
    columns = ("seq", "source_seq", "failed_at", "attempts", "key", "last_error", "data")
    call.print_messages([as_record(d) for d in found], columns)
    return None if found else NOTHING


@command(dead, "redrive", curl=True)
@consumer_arguments
@options(WHICH)
def redrive(
    call: Call,
    stream: str | None,
    consumer: str | None,
    seqs: tuple[int, ...],
    pattern: str | None,
    limit: int | None,
    everything: bool,
) -> None:
    """Give dead letters back to the consumer, as if never delivered: those called SEQ, or chosen by options."""
    stream, consumer = call.consumer(stream, consumer)
    require_choice(seqs, pattern, limit, everything)
    body = given({"seqs": list(seqs) or None, "filter": pattern, "limit": limit, "all": everything or None})
    if call.curl("POST", *path(stream, consumer), "dead", "redrive", body=body):
        return
    reader = call.hg.stream(stream).consumer(consumer)
    total = min(reader.info().dead, len(seqs) or limit or 1 << 62, limit or 1 << 62)
    done = in_parts("redrive", total, lambda n: reader.redrive(seqs=seqs or None, filter=pattern, limit=n))
    call.print_data({"redriven": done}, done)


@command(dead, "purge", curl=True)
@consumer_arguments
@options(WHICH)
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(
    call: Call,
    stream: str | None,
    consumer: str | None,
    seqs: tuple[int, ...],
    pattern: str | None,
    limit: int | None,
    everything: bool,
    yes: bool,
) -> None:
    """Throw dead letters away: those called SEQ, or chosen by options."""
    stream, consumer = call.consumer(stream, consumer)
    require_choice(seqs, pattern, limit, everything)
    body = given({"seqs": list(seqs) or None, "filter": pattern, "limit": limit, "all": everything or None})
    if call.curl("DELETE", *path(stream, consumer), "dead", body=body):
        return
    reader = call.hg.stream(stream).consumer(consumer)
    total = min(reader.info().dead, len(seqs) or limit or 1 << 62, limit or 1 << 62)
    call.confirm(f"throw away up to {total} dead letters of {stream}/{consumer}?", yes)
    done = in_parts("purge", total, lambda n: reader.purge_dead(seqs=seqs or None, filter=pattern, limit=n))
    call.print_data({"purged": done}, done)


def require_choice(seqs: tuple[int, ...], pattern: str | None, limit: int | None, everything: bool) -> None:
    """Not all of them by accident, nor some and all."""
    chosen = bool(seqs or pattern is not None or limit)
    if chosen == everything:
        raise click.UsageError("say which dead letters: SEQ, --filter, --limit, or --all")


def in_parts(label: str, total: int, move: Callable[[int], int]) -> int:
    """Moves up to `total`, a part at a time. No more than there were: what fails meanwhile is not moved again."""
    done = 0
    with progress(label, total) as advance:
        while done < total:
            moved = move(min(PART, total - done))
            if not moved:
                break
            done += moved
            advance(moved)
    return done
