"""How many processes a server has when nobody says."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path

MOST = 8  # by default: each has connections to the database, which allows 100 unless it is told otherwise
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container


def by_cores() -> int:
    """As many as there are cores for this process, but no more than eight."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max 100000": no quota
        quota, period = QUOTA.read_text().split()
        cores = min(cores, ceil(int(quota) / int(period)))
    return max(1, min(cores, MOST))
