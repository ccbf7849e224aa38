"""`format("headgate")`."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .filters import FilteringReader
from .history import HistoryReader, HistoryStreamReader
from .messages import MESSAGE
from .options import Reading, reading, writing
from .secrets import plain
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
        columns = reading(self.options, streaming=False).columns if "columns" in self.options else None
        return StructType([MESSAGE[name] for name in columns]) if columns else MESSAGE

    def reader(self, schema: StructType) -> DataSourceReader:
        given = reading(self.options, streaming=False)
        if given.history:
            return HistoryReader(given, _tasks(given))
        return (FilteringReader if given.push_filters else BatchReader)(given, _tasks(given))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        given = reading(self.options, streaming=True)
        return (HistoryStreamReader if given.history else StreamReader)(given, _tasks(given))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return BatchWriter(writing(self.options), schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return StreamWriter(writing(self.options), schema)


def _tasks(given: Reading) -> int:
    """How many tasks read at once, unless it is said: as many as the driver has cores."""
    return given.tasks or max(2, min(os.cpu_count() or 2, 16))
