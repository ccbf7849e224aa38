"""An archive whose table grows columns (see columns.py): how a batch is copied into it.

Tasks write files for the columns that are known. One that meets what they cannot hold says so; then the table is given
the columns and the batch is copied again, so that only a batch with something new is read twice. New columns are one
commit. A column that has to be wider is made anew, with all others, from the data of every row: one commit too, which
no reader sees half of. Either may be repeated, or be the last thing before a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type

from ..errors import InvalidArgument
from ..lake.files import DataFile, binned, read_files, with_date, write_files
from ..lake.table import LakeTable, Writer, files_of, schema_of
from .columns import Found, Shape, column_name
from .run import Job
from .spans import BatchSpan, read_in_tasks
from .spark_ui import describe
from .spec import Archive
from .tasks import in_tasks

TASK_BYTES = 64 * 1024 * 1024  # of files that one task makes anew


class GrowingTable:
    """Copies batches into a table, which gets the columns that they need."""

    def __init__(self, pipeline: Archive, job: Job, lake: LakeTable) -> None:
        self._job, self._lake, self._name = job, lake, pipeline.name
        self._shape = Shape(declared(pipeline.schema, job.spark) if pipeline.schema else {}, infer=pipeline.infer)

    def prepare(self, writer: Writer) -> None:
        """Gives the table the columns that are declared."""
        self._shape = self._shape.known(schema_of(self._lake.open()))
        self._extend(writer)

    def write_span(self, span: BatchSpan, writer: Writer) -> list[DataFile]:
        """Has tasks write the messages of a span into files, which are not part of the table yet."""
        while True:
            files, news = self._copy(span)
            grown = self._shape.grown(news)
            if grown == self._shape:
                return files
            known, self._shape = self._shape, grown
            if any(grown.found[name] != kind for name, kind in known.found.items()):
                self._rewrite(writer)
            else:
                self._extend(writer)

    def _copy(self, span: BatchSpan) -> tuple[list[DataFile], list[Found]]:
        location, partition_by, shape, schema = self._lake.location, self._lake.partition_by, self._shape, self._schema

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
            news: Found = {}
            yield from write_files(location, schema, partition_by, shape.filled(with_date(batches), news))
            if news:
                yield {"news": news}

        said = read_in_tasks(self._job, span, work, self._name)
        files = [msgspec.convert(item, DataFile) for item in said if "news" not in item]
        return files, [item["news"] for item in said if "news" in item]

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([*self._lake.schema, *self._shape.fields])

    def _extend(self, writer: Writer) -> None:
        there = schema_of(self._lake.open())
        different = [f for f in self._shape.fields if f.name in there.names and there.field(f.name).type != f.type]
        if different:
            shown = ", ".join(f"{f.name} {there.field(f.name).type}" for f in different)
            raise InvalidArgument(
                f"the table at {self._lake.location.uri} has other columns: {shown}",
                hint="the type of a declared column cannot be changed: give the one it has, or write to another place",
            )
        missing = [f for f in self._shape.fields if f.name not in there.names]
        if missing:
            self._lake.extend(missing, writer)

    def _rewrite(self, writer: Writer) -> None:
        """Makes all typed columns anew, of the data of each row."""
        table = self._lake.open()
        there, location, partition_by, shape = (
            schema_of(table),
            self._lake.location,
            self._lake.partition_by,
            self._shape,
        )
        base = self._lake.schema
        describe(self._job.spark, self._name, "all files anew, with wider columns")
        others = [f for f in there if f.name not in base.names and f.name not in {s.name for s in shape.fields}]
        schema = pa.schema([*base, *others, *shape.fields])
        read = pa.schema([*base, *others])
        bins = binned(files_of(table), TASK_BYTES)

        def work(number: int) -> Iterator[DataFile]:
            rows = read_files(location, read, bins[number], read.names)
            return write_files(location, schema, partition_by, shape.filled(rows, {}))

        made = [msgspec.convert(item, DataFile) for item in in_tasks(self._job.spark, len(bins), work)]
        self._lake.rewrite(made, schema, table.version(), writer)


def declared(ddl: str, spark: Any) -> dict[str, pa.DataType]:
    """The columns that a schema declares."""
    try:
        fields = spark.createDataFrame([], ddl).schema
        found = {column_name(f.name): to_arrow_type(f.dataType, timezone="UTC") for f in fields}
    except (PySparkException, AttributeError) as error:
        raise InvalidArgument(
            f'"{ddl}" is not a schema: {str(error).strip().splitlines()[0]}',
            hint='for instance "id long, total double"',
        ) from error
    for name, kind in found.items():
        if not _supported(kind):
            raise InvalidArgument(
                f"JSON has nothing for the column {name} of type {kind}",
                hint="choose of boolean, int, long, double, decimal, string, date, timestamp, array, struct and map",
            )
    return found


def _supported(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(kind):
        return all(_supported(f.type) for f in kind)
    if types.is_map(kind):
        return bool(types.is_string(kind.key_type)) and _supported(kind.item_type)
    if types.is_list(kind):
        return _supported(kind.value_type)
    if types.is_timestamp(kind):
        return kind.tz is not None
    plain = (types.is_string, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_date)
    return any(check(kind) for check in plain)
