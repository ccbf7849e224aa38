"""`headgate worker`: runs a worker that a module of the user's has."""

from __future__ import annotations

import inspect
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import headgate
from headgate.hints import did_you_mean, similar

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
    import asyncio  # here: --help loads all commands

    call.tell_place()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.captureWarnings(capture=True)
    found = _find(target)
    if isinstance(found, headgate.AsyncWorker):
        raise headgate.Error(
            f"{target} is the worker of an async client, which needs the event loop in which it was connected",
            hint="name an `async def` without arguments that connects and returns it",
        )
    if isinstance(found, headgate.Worker):
        if not found._has_run:  # as a script does, at its end
            found.run()
    else:
        found = asyncio.run(_run_async(found, target)) if inspect.iscoroutinefunction(found) else _run(found, target)
    done = found.stats
    call.say(
        {"acked": done.acked, "failed": done.nacked, "released": done.released, "lost": done.lost},
        f"acked {done.acked}, failed {done.nacked}, handed back {done.released}, lost {done.lost}",
    )


def _find(target: str) -> Any:
    """What MODULE:NAME names: a worker, or a function that makes one."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise click.UsageError(f"{target!r} is not MODULE:NAME, such as orders.work:handle")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise  # it is there, and imports something that is not
        raise headgate.Error(
            f"there is no module {missing.name!r}", hint="run this where it lies, or install it"
        ) from None
    holder = found
    for part in name.split("."):
        if not hasattr(found, part):
            near = did_you_mean(similar(part, [n for n, value in vars(holder).items() if _is_worker(value)]))
            raise headgate.Error(f"module {module!r} has no {name!r}", hint=f"{near}NAME is what @consumer.worker made")
        found = getattr(found, part)
    if not _is_worker(found) and not inspect.isfunction(found):
        raise _no_worker(target, found)
    return found


def _is_worker(found: Any) -> bool:
    return isinstance(found, headgate.Worker | headgate.AsyncWorker)


def _run(make: Any, target: str) -> headgate.Worker:
    made = make()
    if not isinstance(made, headgate.Worker):
        raise _no_worker(f"what {target}() returns", made)
    made.run()
    return made


async def _run_async(make: Any, target: str) -> headgate.AsyncWorker:
    made = await make()
    if not isinstance(made, headgate.AsyncWorker):
        raise _no_worker(f"what {target}() returns", made)
    await made.run()
    return made


def _no_worker(what: str, found: Any) -> headgate.Error:
    return headgate.Error(
        f"{what} is no worker, but a {type(found).__name__}",
        hint="name what @consumer.worker made of a function, or a function without arguments that returns it",
    )
