"""How the tests are shared out to the processes of pytest-xdist, and that some of them run while the others stand still."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE, SPARK = "alone", "spark"


def group(item: pytest.Item) -> str:
    """The tests that one worker runs: those of a file, which share servers; all of Spark's, which share a JVM."""
    if item.get_closest_marker("alone"):
        return ALONE
    return SPARK if "spark" in item.path.parts else item.path.stem


def order(item: pytest.Item) -> int:
    """Where a test comes: Spark's first, as nothing else takes as long; those that run alone last."""
    return {SPARK: 0, ALONE: 2}.get(group(item), 1)


@contextmanager
def quiet(item: pytest.Item) -> Iterator[None]:
    """Run a test marked `alone` while no other worker runs one."""
    if not hasattr(item.config, "workerinput"):  # there are no other workers
        yield
        return
    # Python closes it in programs that are started, and the kernel when the worker dies.
    with (Path(item.config.option.basetemp).parent / "quiet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if group(item) == ALONE else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also for processes that were forked meanwhile
