"""`headgate send`: one message from the command line, or many from JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, BinaryIO

import click

import headgate

from . import values
from .app import app
from .call import Call, command, given, options, stream_argument
from .output import print_status
from .progress import bytes_left, progress

MOST = 10_000  # messages in a batch
CHUNK = 1 << 20  # bytes that are read at most before what they hold is sent
FIELDS = {"data", "key", "headers", "channel", "delay", "deliver_at", "id"}
IGNORED = {"seq", "ack_id", "attempt", "created_at"}  # what `receive` and `message list` also write

ONE = (
    click.option("--key", help="The key: what belongs together, in order."),
    click.option("--headers", type=values.headers, help='An object, such as \'{"trace": "abc"}\'.'),
    click.option("--channel", help="The channel: the tenant that it belongs to."),
    click.option("--delay", type=values.time, help="Deliver it after this time at the earliest."),
    click.option(
        "--at",
        "deliver_at",
        type=values.moment,
        metavar="WHEN",
        help="Deliver it at this time at the earliest: 2026-01-31T12:00Z; local without a zone.",
    ),
    click.option("--id", help="Send it only once: the same id again has no effect."),
)


class BadLine(headgate.Error):
    """A line of the input that is no message."""


@command(app, "send", curl=True)
@stream_argument
@click.argument("data", required=False, metavar="DATA|-")
@options(ONE)
@click.option(
    "--lines", type=click.Choice(["message", "data", "text"]), default="message", show_default=True,
    help="What the lines of the input are: messages (objects with data and perhaps key, headers, channel, delay "
         "in seconds or deliver_at, id, as `receive --json` writes them), just their data as JSON, or just text.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="DATA is JSON, also a number or a text in quotes; else it is refused.")
@click.option("--text", is_flag=True, help="DATA is text, whatever it looks like.")
def send(call: Call, stream: str | None, data: str | None, lines: str, strict: bool, text: bool, **one: Any) -> None:
    """Send a message, and print its seq. DATA is JSON when it is an object or a list, and text otherwise.

    What looks like JSON and is none is sent as text, with a warning; --strict refuses it, --text means it.

    With - as DATA, send a message for each line of the input, in batches as they come, and print how many.
    """
    stream = call.stream(stream)
    data = str(call.ask("data")) if data is None else data
    if data == "-":
        for name in ("headers", "channel", "delay", "deliver_at", "id"):
            if one[name] is not None:
                raise click.UsageError(
                    f"--{'at' if name == 'deliver_at' else name} is for one message; write {name} into the lines"
                )
        if strict or text:
            raise click.UsageError("--strict and --text are for one message; --lines says what lines are")
        _send_lines(call, stream, lines, one["key"])
        return
    value = _value(data, one["headers"], strict, text)
    if call.curl("POST", "streams", stream, "messages", body={"messages": [_body(headgate.Outgoing(value, **one))]}):
        return
    seq = call.hg.stream(stream).send(value, **one)
    call.print_data({"seq": seq}, seq)


def _value(data: str, headers: dict[str, Any] | None, strict: bool, text: bool) -> Any:
    if strict and text:
        raise click.UsageError("--strict and --text exclude each other")
    if text:
        return data
    from headgate.database.encoding import CONTENT_TYPE, decode  # here: it is not needed to print help

    value = decode(data, headers)
    if not isinstance(value, str):
        return value
    if strict:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise headgate.errors.InvalidArgument(
                f"the data is not JSON: {error}", hint="mend it, or send it as text: --text"
            ) from error
    if data[:1] in ("{", "[") and CONTENT_TYPE not in (headers or {}):
        print_status(
            "warning: this looks like JSON and is none: it is sent as text (--strict refuses it, --text means it)"
        )
    return value


def _send_lines(call: Call, stream: str, kind: str, key: str | None) -> None:
    source = sys.stdin.buffer
    if call.as_curl:
        bodies = [_body(_message(line, n, kind, key)) for n, line in enumerate(source.read().splitlines(), 1)]
        call.curl("POST", "streams", stream, "messages", body={"messages": bodies})
        return
    target = call.hg.stream(stream)
    sent, first, last = 0, None, None
    try:
        with progress(f"send to {stream}", bytes_left(source)) as advance:
            for batch, failure, read in _batches(source, kind, key):
                seqs = target.send_batch(batch) if batch else []
                sent, first, last = sent + len(seqs), first or next(iter(seqs), None), max([last or 0, *seqs]) or None
                if failure:
                    raise failure
                advance(read)
    except headgate.Error:
        print_status(f"{sent} messages were sent before this")
        raise
    call.print_data({"published": sent, "first_seq": first, "last_seq": last}, sent)


def _batches(
    source: BinaryIO, kind: str, key: str | None
) -> Iterator[tuple[list[headgate.Outgoing], BadLine | None, int]]:
    """Messages as they come, and how many bytes they were; at a bad line those before it, and what is wrong."""
    number, rest, ended = 0, b"", False
    while not ended:
        chunk = source.read1(CHUNK)  # type: ignore[attr-defined]
        ended = not chunk
        *whole, rest = (rest + chunk).split(b"\n")
        if ended and rest:
            whole, rest = [*whole, rest], b""
        read = len(chunk)
        for start in range(0, max(len(whole), 1), MOST):
            batch: list[headgate.Outgoing] = []
            for line in whole[start : start + MOST]:
                number += 1
                if not line.strip() and kind != "text":
                    continue
                try:
                    batch.append(_message(line, number, kind, key))
                except BadLine as failure:
                    yield batch, failure, read
                    return
            yield batch, None, read
            read = 0


def _message(line: bytes, number: int, kind: str, key: str | None) -> headgate.Outgoing:
    try:
        text = line.decode("utf-8").removesuffix("\r")
        value: Any = text if kind == "text" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"line {number} is not {'UTF-8' if kind == 'text' else 'JSON'}: {error}", hint=_AGAIN) from error
    if kind != "message":
        return headgate.Outgoing(value, key)
    problem = _problem(value)
    if problem:
        raise BadLine(f"line {number} is not a message: {problem}", hint=_AGAIN)
    headers = value.get("headers")
    # its text is JSON, whatever the value: a str that is sent as it is would not come back as one
    from headgate.database.encoding import CONTENT_TYPE, dump_json

    is_json = bool(headers) and headers.get(CONTENT_TYPE) == "application/json"
    return headgate.Outgoing(
        dump_json(value["data"]) if is_json else value["data"],
        key if value.get("key") is None else value["key"],
        headers, value.get("delay"), value.get("id"), value.get("channel"), value.get("deliver_at"),
    )  # fmt: skip


def _problem(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "it is no object"
    if "data" not in value:
        return "it has no data"
    if unknown := set(value) - FIELDS - IGNORED:
        return f"it has a field {min(unknown)!r}"
    for name in ("key", "id", "channel"):
        if not isinstance(value.get(name), str | None):
            return f"its {name} is no text"
    if not isinstance(value.get("headers"), dict | None):
        return "its headers are no object"
    delay = value.get("delay")
    if isinstance(delay, bool) or not isinstance(delay, int | float | None):
        return "its delay is no number of seconds"
    return None


def _body(m: headgate.Outgoing) -> dict[str, Any]:
    """A message as the HTTP API takes it."""
    seconds = m.delay.total_seconds() if isinstance(m.delay, timedelta) else m.delay
    return given(
        {
            "key": m.key, "data": m.data, "headers": m.headers, "channel": m.channel,
            "delay_ms": None if seconds is None else round(seconds * 1000), "id": m.id,
            "deliver_at": m.deliver_at,
        }
    )  # fmt: skip


_AGAIN = "mend it, and send it with the lines after it; see --lines for what lines can be"
