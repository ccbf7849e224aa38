"""What all loops that run beside other work have in common."""

from __future__ import annotations

import random


def spread(delay: float) -> float:
    """A fifth more or less, so that what failed together does not come back together."""
    return delay * random.uniform(0.8, 1.2)
