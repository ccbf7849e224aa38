"""`format("headgate_lake")`: a streaming query to a Delta table, exactly once; for pipelines. See lake/table.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...lake.columns import stored
from ...lake.files import DataFile, write_files
from ...lake.storage import Location
from ...lake.table import LakeTable
from ...spark.sink import this_batch


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task has written."""

    writer: str
    files: list[DataFile] = field(default_factory=list)


class LakeWriter(DataSourceStreamArrowWriter):
    """Tasks write files, the driver commits them, with the query and the batch."""

    def __init__(self, lake: LakeTable) -> None:
        self._lake = lake

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, _ = this_batch()
        return WrittenFiles(query, list(write_files(self._lake.location, self._lake.schema, (), iterator)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        written = [m for m in messages if isinstance(m, WrittenFiles)]
        if any(m.files for m in written):
            self._lake.add([file for m in written for file in m.files], written[0].writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Undoes nothing: it is also called after a commit that did take effect. Files in no commit are vacuumed."""


def lake_format(where: Location) -> type[DataSource]:
    """A format that writes to this table. Its credentials travel with it: a Spark Connect server has not got them."""

    class LakeDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "headgate_lake"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return LakeWriter(LakeTable(where.with_plain_credentials(), stored(schema)))

    return LakeDataSource
