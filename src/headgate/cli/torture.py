"""`headgate torture`: random histories of concurrent sessions."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from . import context_file
from .app import app
from .call import Call, command
from .exit_codes import NOTHING, OK
from .output import print_data, print_status
from .progress import each


@command(app, "torture")
@click.argument("names", nargs=-1, metavar="[PRESET]...")
@click.option("--seed", type=click.IntRange(1), metavar="N", help="Of the first history. Default: one by chance.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="So many seeds of each preset.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), metavar="M",
              help="One seed after the other for so long, instead of --count.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=6.0, show_default=True,
              help="How long sessions work in each history; setting up, draining and judging come on top.")  # fmt: skip
@click.option("--meetings", is_flag=True, help="Stop calls at each point of the engine instead, and let others go by.")
@click.option("--postgres", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="The programs of the temporary PostgreSQL: another version, for example.")  # fmt: skip
@click.option("--older", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Begin with this schema, the install_sql() of an older version, and upgrade it under traffic.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="Change the presets: workers=2, weights.seek=0, sizes=1,3, stream.lanes=1, consumers=free.",
)  # fmt: skip
@click.option("--shrink", is_flag=True,
              help="When something is wrong, look for a simpler setting under which it still is, for 3 minutes.",
)  # fmt: skip
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              default=Path("torture-findings"), show_default=True,
              help="Where explanations, diagrams and histories go when something is wrong.")  # fmt: skip
@click.option("--judge", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Judge a history that was kept, instead of running one.")  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Say what each preset is about (with --meetings: each world).")
def torture(call: Call, names: tuple[str, ...], meetings: bool, listing: bool, **options: object) -> int:
    """Have sessions do whatever they like to a stream, and judge what they were told; exit with 3 when it was wrong.

    They send, receive, settle, seek, alter and maintain, inside open transactions of every isolation level and outside.
    What is lost, delivered twice, out of order, stuck or refused without a reason is explained, with the seed.
    PRESETs: all, or those named; --list shows them. With --meetings they are worlds, in each of which every two calls
    meet at every point of the engine.

    It works on a temporary server. Where a database is named, by --database, --context or $HEADGATE_DATABASE_URL, it
    makes databases of its own on that server instead, drops them at the end, and says so first.
    """
    args = argparse.Namespace(names=names, json=call.json, database=call.named_url, **options)
    from headgate.torture import command as tortures  # here: no other command needs it

    if unknown := tortures.unknown(names, meetings, call.named_url is not None):
        raise click.UsageError(unknown)
    if listing:
        presets = tortures.catalogue(names, meetings)
        call.print_data(presets, "\n".join(f"{p['name']:24}{p['about']}" for p in presets))
        return OK
    if call.named_url is not None and not args.judge:
        print_status(f"in databases of its own on the server of {context_file.hidden(call.named_url)}")
    if meetings:
        with ended_by_signals():
            return NOTHING if tortures.meet(args, say=print_data, talk=print_status, watch=each) else OK
    try:
        args.presets = tortures.chosen(names, args.settings, args.older)
        args.judge = tortures.load(args.judge) if args.judge else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with ended_by_signals():
        return NOTHING if tortures.torture(args, say=print_data, talk=print_status) else OK


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, and both do in the background, too: what it has started ends with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
