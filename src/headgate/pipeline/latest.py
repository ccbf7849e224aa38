"""latest: the latest message of each key, as a Delta table that follows the stream.

A batch is reduced to the last message of each key and merged into the table in one commit, which also says how far
the pipeline is (see archive.py). The message with the higher seq counts. A message whose data is empty or the JSON
value null is a tombstone: it removes its key. Messages without a key have no place here.
"""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import WriterProperties
from pyspark.sql import functions as f

from ..errors import Error
from ..spark import MESSAGE, with_data
from ..spark.source import Mark
from .lake import MANY, Lake, Writer, in_two_places, words
from .run import Job, Progress
from .spans import Span, Spans, known_mark
from .spec import Latest
from .tasks import frame

ROWS = 500_000  # in a batch, unless it is said: the driver merges what is left of them
KEPT = ("key", "seq", "data", "headers", "channel", "created_at")


def run(pipeline: Latest, job: Job) -> None:
    """Brings the table up to date, or keeps it so."""
    spans = Spans(job, pipeline)
    lake = Lake(job.place(pipeline.to), columns(pipeline, job), stream=pipeline.stream, pipeline=pipeline.name)
    writer = lake.writer(pipeline.name)
    mark = _position(pipeline, spans, writer)
    if writer.batch >= 0:
        known_mark(mark, spans.mark("latest"), f"the table at {lake.place.uri}")
    total, began = 0, time.monotonic()
    for span in spans.ahead(mark, pipeline.rows_per_batch or ROWS):
        changes, rows = reduced(pipeline, job, span)
        writer = Writer(pipeline.name, writer.batch + 1, {"mark": span.end})
        if rows:
            merge(lake, changes, writer)
        elif not lake.add([], writer.name, writer.batch, writer.state):
            raise in_two_places(writer.name)
        if writer.batch % MANY == MANY - 1 and lake.scattered():
            lake.compact(writer)
        total += rows
        took, began = max(time.monotonic() - began, 0.001), time.monotonic()
        lag, note = job.lag(pipeline.stream, span.end), f"{changes.num_rows} keys"
        job.say(Progress(writer.batch, rows, total, rows / took, lag, note))
    if writer.batch >= 0:
        if lake.scattered():
            lake.compact(writer)
        lake.vacuum()


def columns(pipeline: Latest, job: Job) -> pa.Schema:
    """The columns of the table; data has those of the schema, when there is one."""
    empty = job.spark.createDataFrame([], MESSAGE)
    decoded = with_data(empty, pipeline.schema) if pipeline.schema is not None else empty
    return decoded.select(*KEPT).toArrow().schema


def reduced(pipeline: Latest, job: Job, span: Span) -> tuple[pa.Table, int]:
    """The last message of each key in a span, with `gone` for a tombstone; and how many messages there were."""
    url, parts = job.url, span.parts
    messages = frame(job.spark, len(parts), lambda number: parts[number].batches(url), MESSAGE)
    last = f.max_by(f.struct(*(name for name in KEPT if name != "key")), "seq").alias("last")
    found = (
        messages.where("key is not null")
        .groupBy("key")
        .agg(last, f.count("*").alias("rows"))
        .select("key", "last.*", "rows")
    )
    found = found.withColumn("gone", f.trim("data").isin("", "null"))
    if pipeline.schema is not None:
        found = with_data(found, pipeline.schema)
    changes = found.toArrow()
    return changes.drop_columns("rows"), pc.sum(changes["rows"]).as_py() or 0


def merge(lake: Lake, changes: pa.Table, writer: Writer) -> None:
    """Puts changes into the table, in one commit."""
    table = lake.open()
    known = table.transaction_version(writer.name)
    if known is not None and known >= writer.batch:
        raise in_two_places(writer.name)
    given = {name: f"new.{name}" for name in KEPT}
    merger = table.merge(
        changes, "old.key = new.key", source_alias="new", target_alias="old",
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
        commit_properties=words(writer.name, writer.batch, writer.state),
    )  # fmt: skip
    merger = merger.when_matched_delete("new.gone and new.seq > old.seq")
    merger = merger.when_matched_update(given, "not new.gone and new.seq > old.seq")
    merger.when_not_matched_insert(given, "not new.gone").execute()
    lake.keep(table)


def _position(pipeline: Latest, spans: Spans, writer: Writer) -> Mark:
    if writer.batch < 0:
        return spans.mark(pipeline.start)
    if writer.state is None:
        raise Error(
            f"how far the table of {pipeline.name} is, is not known any more",
            hint="its last batch is no longer in the history of the table: write it anew, to another place",
        )
    mark: Mark = writer.state["mark"]
    return mark
