"""Writing into a stream, exactly once: each task stages its rows, and the driver sends them all in one transaction that
notes the batch (see sql/functions/write/staging.sql). A batch that Spark repeats is not sent again."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from ..database.columns import Array
from ..errors import InvalidArgument
from ..lake.points import point
from .database import ask, rows
from .options import StreamTarget

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

COLUMNS: Mapping[str, tuple[str, tuple[type[DataType], ...]]] = {
    "key": ("a string", (StringType,)),
    "data": ("a string", (StringType,)),
    "headers": ("a string of JSON, or a map of strings", (StringType, MapType)),
    "channel": ("a string", (StringType,)),
    "deliver_at": ("a timestamp", (TimestampType,)),
}
STAGED = pa.schema(
    [
        ("key", pa.string()),
        ("data", pa.string()),
        ("headers", pa.string()),
        ("channel", pa.string()),
        ("deliver_at", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass
class StagedMessages(WriterCommitMessage):
    """What one task has staged."""

    writer: str
    name: str
    messages: int


class _Sink:
    """What batch and streaming writes share."""

    def __init__(self, target: StreamTarget, schema: StructType) -> None:
        self.target = target
        self.columns = _check(schema)

    def stage(self, batches: Iterator[pa.RecordBatch], writer: str, batch: int) -> StagedMessages:
        """Writes the rows of a task into a table of its own."""
        call = "select headgate.stage(%s, %s, %s, %s)"
        name = ask(self.target.url, call, (self.target.stream, writer, batch, "channel" in self.columns))
        reader = pa.RecordBatchReader.from_batches(STAGED, map(self._staged, batches))
        with rows(self.target.url) as cursor:
            count = cursor.adbc_ingest(name, reader, mode="append", db_schema_name="headgate")
        return StagedMessages(writer, name, count)

    def send(self, staged: Sequence[StagedMessages], batch: int) -> None:
        """Sends what all tasks have staged, unless this batch was sent before."""
        if not staged:
            return
        stream, total = self.target.stream, sum(s.messages for s in staged)
        ask(self.target.url, "select headgate.make_room(%s, %s)", (stream, total))
        point("staged", stream)
        call = "select headgate.send_staged(%s, %s, %s, %s::text[], %s::bigint[])"
        names, counts = Array(s.name for s in staged), Array(str(s.messages) for s in staged)
        ask(self.target.url, call, (stream, staged[0].writer, batch, names, counts))
        point("sent", stream)

    def _staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field in STAGED:
            if field.name not in self.columns:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(batch.schema.get_field_index(self.columns[field.name]))
            if field.name == "data" and column.null_count:
                raise InvalidArgument(
                    "a message without data", hint="data is null in some row: filter it out, or coalesce(data, …)"
                )
            columns.append(_headers(column) if field.name == "headers" else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=STAGED)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("headgate")`. The writer is the query, whose id lives as long as its checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(iterator, *this_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.send([m for m in messages if isinstance(m, StagedMessages)], batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Undoes nothing: it is also called after a commit that took effect. What is left is collected."""


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("headgate")`. With the options `writer` and `batch`, a write that is repeated is sent once."""

    def __init__(self, target: StreamTarget, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        super().__init__(target, schema)
        if overwrite:
            raise InvalidArgument("a stream cannot be overwritten", hint='append to it: .mode("append")')
        if ("writer" in options) != ("batch" in options):
            raise InvalidArgument(
                "writer and batch go together", hint='.option("writer", "nightly").option("batch", 7)'
            )
        batch = options.get("batch", "0")
        if not batch.isdigit():
            raise InvalidArgument(f'the option batch is a number, not "{batch}"', hint="a later batch has a higher one")
        self.name, self.batch = options.get("writer", str(uuid.uuid4())), int(batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(iterator, self.name, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.send([m for m in messages if isinstance(m, StagedMessages)], self.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Undoes nothing; see StreamWriter."""


def this_batch() -> tuple[str, int]:
    """The query and the batch that a task of a streaming write works for."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if query is None or batch is None:
        raise InvalidArgument("Spark did not say which query and batch this is", hint="use PySpark 4.1 or newer")
    return query, int(batch)


def _check(schema: StructType) -> dict[str, str]:
    """The columns of the message, by the name they have in the data frame; an error says what is missing or wrong."""
    found = {}
    for field in schema:
        known = COLUMNS.get(field.name.lower())
        if known is None:
            raise InvalidArgument(
                f'a message has no column "{field.name}"',
                hint="select "
                + ", ".join(COLUMNS)
                + " (only data is required); other things go into data, as to_json(struct(…))",
            )
        what, types = known
        if isinstance(field.dataType, BinaryType) or not isinstance(field.dataType, types):
            raise InvalidArgument(
                f"the column {field.name} is {field.dataType.simpleString()} and has to be {what}",
                hint="cast it, or encode it: to_json(struct(…)), base64(…)",
            )
        found[field.name.lower()] = field.name
    if "data" not in found:
        raise InvalidArgument(
            "the column data is missing", hint='for instance df.selectExpr("id as key", "to_json(struct(*)) as data")'
        )
    return found


def _headers(column: pa.Array) -> pa.Array:
    """Headers as JSON objects. What is not one is told here, and not by the transaction that sends them all."""
    if pa.types.is_map(column.type):
        return pa.array([None if v is None else json.dumps(dict(v)) for v in column.to_pylist()], pa.string())
    for text in column.to_pylist():
        if text is None:
            continue
        try:
            good = isinstance(json.loads(text), dict)
        except ValueError:
            good = False
        if not good:
            raise InvalidArgument(
                f"headers have to be a JSON object, not {text[:100]}", hint="to_json(map(…)), or null"
            )
    return column.cast(pa.string())


__all__ = ["BatchWriter", "StagedMessages", "StreamWriter", "this_batch"]
