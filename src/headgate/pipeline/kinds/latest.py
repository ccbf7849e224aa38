"""latest: the latest message of each key, as a Delta table that follows the stream.

A batch is reduced to the last message of each key and merged into the table (see merge.py) in one commit, which also
says how far the pipeline is (see archive.py). The message with the higher seq counts. A message whose data is empty or
the JSON value null is a tombstone: it removes its key. Messages without a key have no place here.
"""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import functions as f

from ...errors import Error, InvalidArgument
from ...lake.table import LakeTable, Writer, files_of, find
from ...spark import MESSAGE, with_data
from ...spark.source import Mark
from ..merge import BUCKET, by_bucket, counted, merge_format
from ..run import Job, Progress, now
from ..spans import BatchSpan, BatchSpans, refuse_mark_of_another_stream
from ..spark_ui import describe, observed
from ..spec import Latest
from ..tasks import cores, frame
from ..vacuum import Vacuum

ROWS = 500_000  # in a batch, unless it is said
BUCKETS = 16
KEPT = ("key", "seq", "data", "headers", "channel", "created_at")


def run(pipeline: Latest, job: Job) -> None:
    """Brings the table up to date, or keeps it so."""
    spans = BatchSpans(job, pipeline)
    lake, buckets = table_of(pipeline, job)
    writer = lake.writer(pipeline.name)
    mark = _position(pipeline, spans, writer)
    if writer.batch >= 0:
        refuse_mark_of_another_stream(mark, spans.mark("latest"), f"the table at {lake.location.uri}")
    vacuum = Vacuum(lake, pipeline.keep_files)
    total, began = 0, time.monotonic()
    for span in spans.ahead(mark, pipeline.rows_per_batch or ROWS):
        writer = Writer(pipeline.name, writer.batch + 1, {"mark": span.end})
        describe(job.spark, pipeline.name, f"batch {writer.batch} of {pipeline.stream}")
        rows, keys = merge(job, lake, reduced(pipeline, job, span, buckets), writer)
        total += rows
        took, began = max(time.monotonic() - began, 0.001), time.monotonic()
        committed, removed = now(), vacuum.due(writer)
        note = f"{keys} keys" + (f", {removed} old files removed" if removed else "")
        lag = job.lag(pipeline.stream, span.end)
        job.say(
            Progress(
                writer.batch, rows, total, rows / took, note=note, files=lake.count(), committed_at=committed, **lag
            )
        )
    if writer.batch >= 0:
        vacuum.finish(writer)


def table_of(pipeline: Latest, job: Job) -> tuple[LakeTable, int]:
    """The table, and the number of its buckets; one that was made before there were any is one bucket."""
    location = job.location(pipeline.to)
    found = find(location)
    buckets = pipeline.buckets or BUCKETS
    if found is not None:
        there = int(found.metadata().configuration.get(PROPERTY, 1))
        if pipeline.buckets not in (None, there):
            raise InvalidArgument(
                f"the table at {location.uri} has {there} buckets, not {pipeline.buckets}",
                hint="their number cannot be changed later: write to another place",
            )
        buckets = there
    schema, partition_by = columns(pipeline, job), partitions(found)
    if partition_by:
        schema = pa.schema([*schema, (BUCKET, pa.int32())])
    lake = LakeTable(
        location, schema, partition_by, stream=pipeline.stream, pipeline=pipeline.name,
        properties={PROPERTY: str(buckets)},
    )  # fmt: skip
    return lake, buckets


def partitions(found: DeltaTable | None) -> list[str]:
    """How the table is cut into partitions; one that was made before there were buckets is not."""
    return [BUCKET] if found is None or found.metadata().partition_columns else []


PROPERTY = "headgate.buckets"


def columns(pipeline: Latest, job: Job) -> pa.Schema:
    """The columns of the table; data has those of the schema, when there is one."""
    empty = job.spark.createDataFrame([], MESSAGE)
    decoded = with_data(empty, pipeline.schema) if pipeline.schema is not None else empty
    return decoded.select(*KEPT).toArrow().schema


def reduced(pipeline: Latest, job: Job, span: BatchSpan, buckets: int) -> Any:
    """The last message of each key in a span, with `gone` for a tombstone and how many messages there were of it; rows
    of one bucket in one task, and one after the other."""
    url, parts = job.url, span.parts
    messages = frame(job.spark, len(parts), lambda number: parts[number].batches(url), MESSAGE)
    last = f.max_by(f.struct(*(name for name in KEPT if name != "key")), "seq").alias("last")
    found = (
        messages.where("key is not null")
        .groupBy("key")
        .agg(last, f.count("*").alias("rows"))
        .select("key", "last.*", "rows")
        .withColumn(BUCKET, f.pmod(f.crc32("key"), f.lit(buckets)).cast("int"))
        .withColumn("gone", f.trim("data").isin("", "null"))
    )
    if pipeline.schema is not None:
        found = with_data(found, pipeline.schema)
    found = observed(found, pipeline.name, "rows")
    tasks = min(buckets, cores(job.spark))
    return found.repartition(tasks, BUCKET).sortWithinPartitions(BUCKET)


def merge(job: Job, lake: LakeTable, changes: Any, writer: Writer) -> tuple[int, int]:
    """Puts changes into the table, in one commit; returns how many messages and keys they were."""
    job.spark.dataSource.register(form := merge_format(lake, by_bucket(files_of(lake.open())), writer))
    changes.write.format(form.name()).mode("append").save()
    return counted(lake.writer(writer.name).state)


def _position(pipeline: Latest, spans: BatchSpans, writer: Writer) -> Mark:
    if writer.batch < 0:
        return spans.mark(pipeline.start)
    if writer.state is None:
        raise Error(
            f"how far the table of {pipeline.name} is, is not known any more",
            hint="its last batch is no longer in the history of the table: write it anew, to another place",
        )
    mark: Mark = writer.state["mark"]
    return mark
