"""Waiting for what nobody tells a test about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout: float = 120) -> None:
    """Wait for something that nobody tells us about; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting after {timeout:g} seconds"
        time.sleep(0.01)
