"""`format("headgate")`."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ..database.statements import STREAM_SETTINGS
from ..lake.secrets import plain
from .database import control
from .filters import FilteringReader, FilteringSeveralReader
from .history import HistoryReader, HistoryStreamReader
from .messages import MESSAGE, STREAM
from .options import ReadOptions, StreamTarget, reading, writing
from .several import SeveralReader, SeveralStreamReader
from .sink import BatchWriter, StreamWriter
from .source import BatchReader, StreamReader


class HeadgateDataSource(DataSource):
    """A stream of messages, to be read or written, in batches or continuously."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if "url" in options:
            options["url"] = plain(options["url"])

    @classmethod
    def name(cls) -> str:
        return "headgate"

    def schema(self) -> StructType:
        known = {STREAM.name: STREAM, **{f.name: f for f in MESSAGE}}
        if not any(name in self.options for name in ("columns", "streams", "streamPattern")):
            return MESSAGE
        return StructType([known[name] for name in reading(self.options, streaming=False).names])

    def reader(self, schema: StructType) -> DataSourceReader:
        given = reading(self.options, streaming=False)
        if given.history:
            return HistoryReader(given, _tasks(given))
        if given.several:
            return (FilteringSeveralReader if given.push_filters else SeveralReader)(given, _tasks(given))
        return (FilteringReader if given.push_filters else BatchReader)(given, _tasks(given))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        given = reading(self.options, streaming=True)
        if given.several:
            return SeveralStreamReader(given, _tasks(given))
        return (HistoryStreamReader if given.history else StreamReader)(given, _tasks(given))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return BatchWriter(_there(writing(self.options)), schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return StreamWriter(_there(writing(self.options)), schema)


def _there(target: StreamTarget) -> StreamTarget:
    """An error when there is no such stream: one that a task raises is told four times over, in Java's words."""
    control(target.url).run(STREAM_SETTINGS, (target.stream,))
    return target


def _tasks(given: ReadOptions) -> int:
    """How many tasks read at once, unless it is said: as many as the driver has cores."""
    return given.tasks or max(2, min(os.cpu_count() or 2, 16))
