"""Calls that take their time, beside what is shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def beside(function: Callable[..., T], *args: Any) -> T:
    """What it returns, from a thread of its own. Nobody waits at the end for one that hangs (as `to_thread` would)."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop has ended meanwhile
            return

    threading.Thread(target=run, name="headgate observe", daemon=True).start()
    return await answer
