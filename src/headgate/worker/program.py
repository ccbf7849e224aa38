"""A worker that a module of the user's has, found by its name and run: `headgate worker MODULE:NAME`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import Error
from ..hints import did_you_mean, similar
from .lifecycle import AsyncWorker, Worker
from .options import WorkerStats


def run_program(target: str) -> WorkerStats:
    """Runs the worker, or what makes one, until it is stopped; its log goes to stderr."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.captureWarnings(capture=True)
    found = _find(target)
    if isinstance(found, AsyncWorker):
        raise Error(
            f"{target} is the worker of an async client, which needs the event loop in which it was connected",
            hint="name an `async def` without arguments that connects and returns it",
        )
    if not isinstance(found, Worker):
        return (
            asyncio.run(_run_async(found, target)) if inspect.iscoroutinefunction(found) else _run(found, target)
        ).stats
    if not found._has_run:  # as a script does, at its end
        found.run()
    return found.stats


def _find(target: str) -> Any:
    """What MODULE:NAME names: a worker, or a function that makes one."""
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise  # it is there, and imports something that is not
        raise Error(f"there is no module {missing.name!r}", hint="run this where it lies, or install it") from None
    holder = found
    for part in name.split("."):
        if not hasattr(found, part):
            near = did_you_mean(similar(part, [n for n, value in vars(holder).items() if _is_worker(value)]))
            raise Error(f"module {module!r} has no {name!r}", hint=f"{near}NAME is what @consumer.worker made")
        found = getattr(found, part)
    if not _is_worker(found) and not inspect.isfunction(found):
        raise _no_worker(target, found)
    return found


def _is_worker(found: Any) -> bool:
    return isinstance(found, Worker | AsyncWorker)


def _run(make: Any, target: str) -> Worker:
    made = make()
    if not isinstance(made, Worker):
        raise _no_worker(f"what {target}() returns", made)
    made.run()
    return made


async def _run_async(make: Any, target: str) -> AsyncWorker:
    made = await make()
    if not isinstance(made, AsyncWorker):
        raise _no_worker(f"what {target}() returns", made)
    await made.run()
    return made


def _no_worker(what: str, found: Any) -> Error:
    return Error(
        f"{what} is no worker, but a {type(found).__name__}",
        hint="name what @consumer.worker made of a function, or a function without arguments that returns it",
    )
