"""SIGTERM and SIGINT for the workers of a process: the first one takes them, the last one gives them back."""

from __future__ import annotations

import signal
from typing import Any, Protocol


class Stoppable(Protocol):
    """What a signal stops."""

    is_stopping: bool

    def stop(self, grace: float | None = None) -> None:
        """Ends soon: with `grace=0` at once."""


_listening: list[Stoppable] = []
_previous: dict[signal.Signals, Any] = {}


def listen(worker: Stoppable) -> None:
    """Has signals stop the worker, until `unlisten`."""
    if not _listening:
        for number in (signal.SIGTERM, signal.SIGINT):
            _previous[number] = signal.signal(number, _signalled)
    _listening.append(worker)


def unlisten(worker: Stoppable) -> None:
    """Signals are no longer its business."""
    _listening.remove(worker)
    if not _listening:
        while _previous:
            number, handler = _previous.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _signalled(_number: int, _frame: Any) -> None:
    for worker in list(_listening):
        worker.stop(grace=0 if worker.is_stopping else None)
