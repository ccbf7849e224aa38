"""Streams as data frames, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headgate


def messages(spark: Any, hg: headgate.Headgate, stream: str = "orders", **options: Any) -> Any:
    """A batch read of a stream."""
    return spark.read.format("headgate").options(url=hg.url, stream=stream, **options).load()


def arriving(spark: Any, hg: headgate.Headgate, stream: str = "orders", **options: Any) -> Any:
    """A streaming read of a stream."""
    return spark.readStream.format("headgate").options(url=hg.url, stream=stream, **options).load()


def copying(frame: Any, hg: headgate.Headgate, to: str, checkpoint: Path) -> Any:
    """A query that writes a streaming frame into a stream, as far as there is something."""
    writer = frame.select("key", "data", "headers").writeStream.format("headgate").options(url=hg.url, stream=to)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def finish(query: Any, seconds: float = 120) -> Any:
    """Waits for a query; its error is raised."""
    assert query.awaitTermination(seconds), "the query does not end"
    return query


def contents(hg: headgate.Headgate, stream: str) -> list[tuple[str | None, str, Any]]:
    """Key, data and headers of a stream's messages, in the order of their seqs."""
    return [tuple(row) for row in hg.run(f'select key, data, headers from headgate."log_{stream}" order by seq', ())]  # type: ignore[misc]
