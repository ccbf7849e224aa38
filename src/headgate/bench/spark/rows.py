"""What the source is measured against: a plain data source that reads rows with a driver and yields them as tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

COLUMNS = "seq, key, data, headers::text, null::text, lane::bigint, created_at, 0::bigint"


class RowsDataSource(DataSource):
    """`format("headgate_bench_rows")`: the log's table by ranges of seqs."""

    @classmethod
    def name(cls) -> str:
        return "headgate_bench_rows"

    def schema(self) -> str:
        return ("seq long, key string, data string, headers string, channel string, lane long, created_at timestamp, "
                "tick long")  # fmt: skip

    def reader(self, schema: Any) -> DataSourceReader:
        return RowsReader(self.options["url"], int(self.options["messages"]), int(self.options["tasks"]))


class Range(InputPartition):
    """Seqs of one task."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__(None)
        self.first, self.end = first, end


class RowsReader(DataSourceReader):
    """One query a task, with a cursor on the server, so that memory does not grow."""

    def __init__(self, url: str, messages: int, tasks: int) -> None:
        self.url, self.messages, self.tasks = url, messages, tasks

    def partitions(self) -> Sequence[InputPartition]:
        each = -(-self.messages // self.tasks)
        return [Range(i * each + 1, min((i + 1) * each, self.messages) + 1) for i in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Range)
        with psycopg.connect(self.url) as connection, connection.cursor(name="rows") as cursor:
            cursor.itersize = 10_000
            query = f"select {COLUMNS} from headgate.log_bench where seq >= %s and seq < %s order by seq"  # noqa: S608
            yield from cursor.execute(query, (partition.first, partition.end))
