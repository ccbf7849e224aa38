"""`headgate replay` and `retry`: messages that a consumer is to get again, or now."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from . import values
from .app import app
from .call import Call, command, consumer_arguments, given
from .consumers import path
from .exit_codes import NOTHING, OK
from .output import print_status

SEQS = click.argument("seqs", nargs=-1, type=int, metavar="[SEQ]...")


@command(app, "replay", curl=True)
@consumer_arguments
@SEQS
@click.option("--from-seq", type=click.IntRange(min=1), metavar="SEQ", help="From this seq on.")
@click.option("--to-seq", type=click.IntRange(min=1), metavar="SEQ", help="Up to this seq.")
@click.option("--from-time", type=values.moment, metavar="WHEN",
              help="Sent at this time or later: 2026-01-31 12:00, in local time if it names no zone.")  # fmt: skip
@click.option("--to-time", type=values.moment, metavar="WHEN", help="Sent before this time.")
@click.option("--filter", "pattern", metavar="PATTERN", help="Only keys like `orders.*.created` or `orders.>`.")
@click.option("--all", "everything", is_flag=True, help="All that the stream still has.")
def replay(
    call: Call,
    stream: str | None,
    consumer: str | None,
    seqs: tuple[int, ...],
    from_seq: int | None,
    to_seq: int | None,
    from_time: datetime | None,
    to_time: datetime | None,
    pattern: str | None,
    everything: bool,
) -> int:
    """Hand messages to a consumer again, which stays where it is: those called SEQ, or chosen by options.

    What is given must all hold. What the consumer has in flight or parked, has not read yet, or does not let through
    its filter is passed over.
    """
    stream, consumer = call.consumer(stream, consumer)
    chosen: dict[str, Any] = given(
        {
            "seqs": list(seqs) or None, "from_seq": from_seq, "to_seq": to_seq, "from_time": from_time,
            "to_time": to_time, "filter": pattern,
        }
    )  # fmt: skip
    if bool(chosen) == everything:
        raise click.UsageError(
            "say which messages: SEQ, --from-seq, --to-seq, --from-time, --to-time, --filter, or --all alone"
        )
    chosen = {"from_seq": 1} if everything else chosen
    if call.curl("POST", *path(stream, consumer), "replay", body=chosen):
        return OK
    reader = call.hg.stream(stream).consumer(consumer)
    done = {"replayed": 0, "not_found": 0, "passed_over": 0}
    while True:  # a part at a time; what is sent meanwhile is not read yet, and passed over
        part = reader.replay(**chosen)
        done = {name: count + getattr(part, name) for name, count in done.items()}
        if part.next_seq is None:
            break
        chosen["from_seq"] = part.next_seq
    call.print_data(done, done["replayed"])
    if done["passed_over"] and not call.json:
        print_status(
            f"{done['passed_over']} passed over: in flight, parked or not read yet, or against the consumer's filter"
        )
    if done["not_found"] and not call.json:
        print_status(f"{done['not_found']} not found: the stream does not have them")
    return NOTHING if seqs and not done["replayed"] else OK


@command(app, "retry", curl=True)
@consumer_arguments
@SEQS
@click.option("--all", "everything", is_flag=True, help="All that are parked.")
def retry(call: Call, stream: str | None, consumer: str | None, seqs: tuple[int, ...], everything: bool) -> int:
    """Make parked messages due at once, not when their delay is over: those called SEQ, or all."""
    stream, consumer = call.consumer(stream, consumer)
    if bool(seqs) == everything:
        raise click.UsageError("say which messages: SEQ, or --all alone")
    body = {"all": True} if everything else {"seqs": list(seqs)}
    if call.curl("POST", *path(stream, consumer), "retry", body=body):
        return OK
    done = call.hg.stream(stream).consumer(consumer).retry_now(list(seqs) or None, all=everything)
    call.print_data({"retried": done}, done)
    if done < len(seqs) and not call.json:
        print_status(f"{len(seqs) - done} are not parked; `headgate message life {stream} SEQ` shows where one is")
    return NOTHING if seqs and not done else OK
