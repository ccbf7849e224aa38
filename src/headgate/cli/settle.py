"""`headgate ack`, `nack` and `extend`: what becomes of messages that were received."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import click

import headgate

from . import values
from .app import app
from .call import Call, command, consumer_arguments, given
from .consumers import path
from .exit_codes import NOTHING

IDS = click.argument("ack_ids", nargs=-1, metavar="ACK_ID...|-")


def read_ids(call: Call, ack_ids: tuple[str, ...]) -> list[str]:
    """The ack_ids that were given; with -, those of the input's lines, alone or as `receive --json` wrote them."""
    if not ack_ids:
        return [call.ask("ack_id")]
    if ack_ids != ("-",):
        return list(ack_ids)
    lines = sys.stdin.buffer.read().decode("utf-8", "replace").splitlines()
    return [_id(line.strip(), number) for number, line in enumerate(lines, 1) if line.strip()]


def _id(line: str, number: int) -> str:
    if not line.startswith("{"):
        return line
    try:
        return str(json.loads(line)["ack_id"])
    except (ValueError, KeyError, RecursionError):
        raise headgate.errors.InvalidAckId(
            f"line {number} has no ack_id", hint="give ack_ids, or lines that `headgate receive --json` wrote"
        ) from None


def print_settled(call: Call, what: str, settled: headgate.types.Settled) -> int | None:
    """Prints what became of them."""
    call.print_data({what: settled.settled, "stale": settled.stale}, f"{what} {settled.settled}, stale {settled.stale}")
    return NOTHING if settled.stale else None


@command(app, "ack", curl=True)
@consumer_arguments
@IDS
def ack(call: Call, stream: str | None, consumer: str | None, ack_ids: tuple[str, ...]) -> int | None:
    """Say that messages are done."""
    stream, consumer = call.consumer(stream, consumer)
    ids = read_ids(call, ack_ids)
    if call.curl("POST", *path(stream, consumer), "ack", body={"ack_ids": ids}):
        return None
    return print_settled(call, "acked", call.hg.stream(stream).consumer(consumer).ack(ids))


@command(app, "nack", curl=True)
@consumer_arguments
@IDS
@click.option("--delay", type=values.time, help="Deliver them again after this time. Default: the consumer's backoff.")
@click.option("--error", help="What went wrong.")
def nack(
    call: Call,
    stream: str | None,
    consumer: str | None,
    ack_ids: tuple[str, ...],
    delay: timedelta | None,
    error: str | None,
) -> int | None:
    """Say that messages failed: they are delivered again."""
    stream, consumer = call.consumer(stream, consumer)
    ids = read_ids(call, ack_ids)
    if call.curl("POST", *path(stream, consumer), "nack", body=given({"ack_ids": ids, "delay": delay, "error": error})):
        return None
    return print_settled(call, "nacked", call.hg.stream(stream).consumer(consumer).nack(ids, delay=delay, error=error))


@command(app, "extend", curl=True)
@consumer_arguments
@IDS
@click.option("--by", type=values.time, default="30s", show_default=True,
              help="From now; 0s: visible at once, which counts as an attempt.")  # fmt: skip
def extend(call: Call, stream: str | None, consumer: str | None, ack_ids: tuple[str, ...], by: timedelta) -> int | None:
    """Move the deadline of these messages alone, also nearer; with 0s others get them at once.

    Of whole deliveries (an ack_id without its last number) the deadline is never moved nearer, except by 0s.
    """
    stream, consumer = call.consumer(stream, consumer)
    ids = read_ids(call, ack_ids)
    if call.curl("POST", *path(stream, consumer), "extend", body={"ack_ids": ids, "by": by}):
        return None
    return print_settled(call, "extended", call.hg.stream(stream).consumer(consumer).extend(ids, by))
