"""One Spark session for the whole run: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.pipeline.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two cores of this machine."""
    made = session("headgate tests", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()
