"""`headgate worker`: a worker of the user's program."""

from __future__ import annotations

import click

from .app import app
from .call import Call, command


@command(app, "worker")
@click.argument("target", metavar="MODULE:NAME")
def worker(call: Call, target: str) -> None:
    """Run a worker until SIGTERM or Ctrl-C, and then finish what runs.

    NAME is what `@consumer.worker` made of a function, or a function without arguments that returns it: `async def`
    for the worker of an async client. MODULE is looked for in this directory, too. The worker's log goes to stderr,
    and what it did to stdout at the end. It is the module that connects: --database and --context reach it as
    $HEADGATE_DATABASE_URL and $HEADGATE_TOKEN.
    """
    if not all(target.partition(":")):
        raise click.UsageError(f"{target!r} is not MODULE:NAME, such as orders.work:handle")
    from headgate.worker.program import run_program  # here: no other command needs it

    call.tell_place()
    done = run_program(target)
    call.print_data(
        {"acked": done.acked, "failed": done.nacked, "released": done.released, "lost": done.lost},
        f"acked {done.acked}, failed {done.nacked}, handed back {done.released}, lost {done.lost}",
    )
