"""What a large request took is given back when it is answered, and not at some later time, or never.

Three things keep it otherwise: the traceback of what failed (a circle that waits for the garbage collector, which comes
rarely here), the allocator, and the buffers of the database's driver (`aio/pooled.py` lets go of these).
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from contextlib import suppress

LARGE = 1024 * 1024  # bytes of a request or an answer
TRIM_AFTER = 1.0  # seconds: once for all that were answered by then


def release(error: BaseException | None) -> None:
    """Forgets where an error came from, and with it all that the functions on the way had in hand."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class Memory:
    """Has the allocator give back what is free. Where it cannot be told to (it is not glibc's), nothing is done."""

    def __init__(self) -> None:
        self._trim: Callable[[int], int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        with suppress(OSError, AttributeError):
            self._trim = ctypes.CDLL(None).malloc_trim

    def trim_soon(self) -> None:
        """Something large was answered."""
        if self._trim is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim_now, self._trim)

    def _trim_now(self, trim: Callable[[int], int]) -> None:
        self._timer = None
        trim(0)
