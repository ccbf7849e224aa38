"""Work in Spark's tasks, given as a Python function, whose rows do not have to come from the JVM.

It is a data source made for the purpose: unlike `mapInArrow` it needs no pandas, and unlike RDDs it also runs through
Spark Connect. The function travels pickled, so what it holds (a database's URL) is in no plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from .spark_ui import observed

FORMAT = "headgate_tasks"
SAID = StructType(
    [StructField("said", StringType()), StructField("rows", LongType()), StructField("bytes", LongType())]
)
COLUMNS = pa.schema([("said", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])

TaskFunction = Callable[[int], Iterator[pa.RecordBatch]]


class _Tasks(DataSourceReader):
    def __init__(self, count: int, work: TaskFunction) -> None:
        self._count, self._work = count, work

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._work(partition.value)


def frame(spark: Any, count: int, work: TaskFunction, columns: StructType) -> Any:
    """A DataFrame of what work(0), work(1), … give, each in a task of its own, in that order."""

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Tasks(count, work)

    spark.dataSource.register(Source)
    return spark.read.format(FORMAT).load()


def in_tasks(spark: Any, count: int, work: Callable[[int], Iterator[Any]], pipeline: str | None = None) -> list[Any]:
    """Runs work(0), work(1), … each in a task of its own, and gives everything that they say, as plain data. Rows and
    bytes of files that they speak of are observed for a pipeline."""
    if count == 0:
        return []

    def task(number: int) -> Iterator[pa.RecordBatch]:
        items = list(work(number))
        said = [msgspec.json.encode(item).decode() for item in items]
        rows, size = ([getattr(item, name, 0) for item in items] for name in ("rows", "size"))
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip((said, rows, size), COLUMNS, strict=True)], schema=COLUMNS
        )

    found = frame(spark, count, task, SAID)
    if pipeline is not None:
        found = observed(found, pipeline, "rows", "bytes")
    return [msgspec.json.decode(row[0]) for row in found.collect()]


def cores(spark: Any) -> int:
    """How many tasks run at once. A Spark Connect server does not say: then as many as the driver has cores."""
    try:
        return max(2, int(spark.sparkContext.defaultParallelism))
    except Exception:  # PySpark has several errors for "not with Connect"
        return max(2, min(os.cpu_count() or 2, 16))
