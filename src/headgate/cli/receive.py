"""`headgate receive`: messages of a consumer, as lines."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import click

import headgate

from . import values
from .app import app
from .call import Call, command, consumer_arguments, given
from .consumers import path
from .exit_codes import NOTHING
from .output import print_status

FIELDS = ("ack_id", "seq", "key", "data", "headers", "channel", "attempt", "created_at")
FOLLOWED = 100  # messages that --follow takes at once, and
POLL = 0.5  # how long it waits in one call, and Ctrl-C at the most


@command(app, "receive", curl=True)
@consumer_arguments
@click.option(
    "-n", "--batch-size", type=click.IntRange(1, 1000), help="At most so many. Default: 1, or with --follow 100."
)
@click.option("--wait", type=values.time, default="0s", help="Wait so long for the first message.")
@click.option("--ack", is_flag=True, help="Ack messages once they are printed.")
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@click.option("--worker", help="The worker's name, shown while messages are with it.")
@click.option("--ack-wait", type=values.time, help="They are yours for so long. Default: the consumer's ack_wait.")
def receive(
    call: Call,
    stream: str | None,
    consumer: str | None,
    batch_size: int | None,
    wait: timedelta,
    ack: bool,
    follow: bool,
    worker: str | None,
    ack_wait: timedelta | None,
) -> int | None:
    """Receive messages, and print them: with --json, one a line.

    Unless --ack is given they are with you until the ack_wait has passed: `headgate ack` them before.
    """
    stream, consumer = call.consumer(stream, consumer)
    query = given({"batch_size": batch_size or 1, "wait": wait or None, "worker": worker, "ack_wait": ack_wait})
    without = {"--ack": ack, "--follow": follow}
    if call.curl("GET", *path(stream, consumer), "receive", query=query, without=without):
        return None
    reader = call.hg.stream(stream).consumer(consumer)
    if not follow:
        found = reader.receive(batch_size or 1, wait=wait.total_seconds(), worker=worker, ack_wait=ack_wait)
        _hand_over(call, reader, found, ack=ack, header=True)
        return None if found else NOTHING
    header = True
    with _noticing_ctrl_c() as is_pressed:
        while not is_pressed():
            found = reader.receive(batch_size or FOLLOWED, wait=POLL, worker=worker, ack_wait=ack_wait)
            if found:
                _hand_over(call, reader, found, ack=ack, header=header)
                header = False
    raise KeyboardInterrupt


@contextmanager
def _noticing_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Ctrl-C only takes note, so that whether it was pressed can be asked. Raised in the middle of a call, it would
    strand the messages that are on their way, and might leave a lock of the pool of connections held, for which the end
    of the program then waits. The second time, when the database does not answer, it raises KeyboardInterrupt."""
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _hand_over(
    call: Call, reader: headgate.Consumer, found: list[headgate.Message], *, ack: bool, header: bool
) -> None:
    """Prints messages, and acks them if so asked: only then, so that none is lost when nobody reads our output."""
    try:
        call.print_messages([_row(m) for m in found], ("ack_id", "seq", "attempt", "key", "data"), header=header)
    except BrokenPipeError:
        reader.release(found)
        raise
    if ack and found and (late := reader.ack(found).stale):
        print_status(f"{late} acks came too late: the messages will be delivered again")


def _row(m: headgate.Message) -> dict[str, Any]:
    return {name: getattr(m, name) for name in FIELDS}
