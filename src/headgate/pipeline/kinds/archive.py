"""archive: a stream to a Delta table, exactly once.

How far it is stands in the table, in the commit of each batch: there is no checkpoint that could differ from it. What
the database knows of the archive (`headgate.note_archive`, on which retention may depend) is said after the commit,
and said again at the next start in case a crash came between the two.
"""

from __future__ import annotations

import time

import msgspec
import pyarrow as pa

from ...errors import Error, InvalidArgument
from ...lake.points import point
from ...lake.table import LakeTable, Writer, already_running
from ...spark.messages import ARROW
from ...spark.source import Mark, later
from ..compaction import MANY, compact
from ..growing_table import GrowingTable
from ..run import Job, Progress, now
from ..spans import BatchSpans, refuse_mark_of_another_stream
from ..spark_ui import describe
from ..spec import Archive
from ..vacuum import Vacuum

ROWS = 1_000_000  # in a batch, unless it is said: files of a size that readers like
DERIVED = pa.schema([("date", pa.date32()), ("hour", pa.int32())])
PARTITIONS = ("date", "hour", "key", "channel", "lane")


def run(pipeline: Archive, job: Job) -> None:
    """Copies what is there, or goes on copying."""
    lake = LakeTable(
        job.location(pipeline.to), columns(pipeline), pipeline.partition_by,
        stream=pipeline.stream, pipeline=pipeline.name, grows=True,
    )  # fmt: skip
    table = GrowingTable(pipeline, job, lake)
    spans = BatchSpans(job, pipeline)
    writer = lake.writer(pipeline.name)
    table.prepare(writer)
    mark = _position(pipeline, job, spans, writer)
    if writer.batch >= 0:
        refuse_mark_of_another_stream(mark, spans.mark("latest"), f"the table at {lake.location.uri}")
        _record_position(pipeline, job, lake, mark)
    vacuum = Vacuum(lake, pipeline.keep_files)
    total, began = 0, time.monotonic()
    for span in spans.ahead(mark, pipeline.rows_per_batch or ROWS):
        describe(job.spark, pipeline.name, f"batch {writer.batch + 1} of {pipeline.stream}")
        files = table.write_span(span, writer)
        writer = Writer(pipeline.name, writer.batch + 1, {"mark": span.end})
        # also without files: seqs that nobody used count as read, so that nobody misses them when their segment is gone
        if not lake.add(files, writer.name, writer.batch, writer.state):
            raise already_running(pipeline.name)
        committed = now()
        _record_position(pipeline, job, lake, span.end)
        point("noted", lake.location.uri)
        rows = sum(file.rows for file in files)
        total += rows
        note = _tidy(pipeline, job, lake, writer, vacuum)
        took, began = max(time.monotonic() - began, 0.001), time.monotonic()
        lag = job.lag(pipeline.stream, span.end)
        job.say(
            Progress(
                writer.batch, rows, total, rows / took, note=note, files=lake.count(), committed_at=committed, **lag
            )
        )
    if writer.batch >= 0:
        if pipeline.compact:
            compact(job, lake, writer)
        vacuum.finish(writer)


def columns(pipeline: Archive) -> pa.Schema:
    """The columns of the table; an error when it cannot be partitioned as it is said."""
    for name in pipeline.partition_by:
        if name not in PARTITIONS:
            raise InvalidArgument(
                f'a table cannot be partitioned by "{name}"', hint="choose of " + ", ".join(PARTITIONS)
            )
    return pa.schema([*ARROW, *(f for f in DERIVED if f.name in pipeline.partition_by)])


def _position(pipeline: Archive, job: Job, spans: BatchSpans, writer: Writer) -> Mark:
    """Where to go on: what the table says, or the database, when it is later, or the table's own words are too old."""
    if writer.batch < 0:
        return spans.mark(pipeline.start)
    noted = job.hg.run("select headgate.archive_mark(%s, %s)", (pipeline.stream, pipeline.name))[0][0]
    if noted is None:
        if writer.state is not None:
            mark: Mark = writer.state["mark"]
            return mark
        raise Error(
            f"how far the archive {pipeline.name} is, is not known any more",
            hint="its last batch is no longer in the history of the table: archive to another place",
        )
    # retention may have removed what was noted, though there was nothing to commit
    noted = noted if isinstance(noted, dict) else msgspec.json.decode(noted)
    return later(noted, None if writer.state is None else writer.state["mark"])


def _record_position(pipeline: Archive, job: Job, lake: LakeTable, mark: Mark) -> None:
    """Tells the database how far the archive is; not of one that has only some keys: retention must not rely on it."""
    if pipeline.filter is None:
        encoded = msgspec.json.encode(mark).decode()
        call = "select headgate.note_archive(%s, %s, %s, %s)"
        job.hg.run(call, (pipeline.stream, pipeline.name, lake.location.uri, encoded))


def _tidy(pipeline: Archive, job: Job, lake: LakeTable, writer: Writer, vacuum: Vacuum) -> str | None:
    """Keeps the table in order while it grows; returns what was done."""
    gone = compact(job, lake, writer) if pipeline.compact and writer.batch % MANY == MANY - 1 else 0
    removed = vacuum.due(writer)
    done = [f"{gone} small files put together"] * bool(gone) + [f"{removed} old files removed"] * bool(removed)
    return ", ".join(done) or None
