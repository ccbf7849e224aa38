"""replay: a Delta table to a stream, exactly once and in the order of seq.

The table is cut into batches by ranges of seq, which stay the same when the pipeline is started again; the sink sends
each in one transaction that notes its number, so those that are in the stream are skipped. Inside a batch each task
has a range of seqs, and what tasks staged is sent one after the other: the order is that of the stream that was
archived.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from ...errors import InvalidArgument
from ...lake.files import DataFile, read_files
from ...lake.table import existing, files_of, schema_of
from ...spark.keys import check_names, matching, pattern, renamed
from ...spark.messages import MESSAGE
from ..checks import replayable
from ..run import Job, Progress
from ..spec import Replay
from ..tasks import cores, frame
from ..times import parse_time

ROWS = 500_000  # in a batch, unless it is said: a file is read again for each batch that it has rows of
BATCH_ROWS = 10_000  # handed to Spark at once
COLUMNS = (*MESSAGE.names, "date", "hour")
SENT = ("key", "data", "headers", "channel")


class ReplayPlan(msgspec.Struct, frozen=True):
    """How the table is cut into batches. It is kept, because a restart has to cut it the same way."""

    spec: str
    first: int
    end: int
    """The first seq that is not replayed any more."""
    width: int

    @property
    def batches(self) -> int:
        """How many there are."""
        return max(-(-(self.end - self.first) // self.width), 0)

    def range(self, batch: int) -> tuple[int, int]:
        """The seqs of a batch; batches count from 1."""
        start = self.first + (batch - 1) * self.width
        return start, min(start + self.width, self.end)


def run(pipeline: Replay, job: Job) -> None:
    """Sends what the table has and the stream has not yet."""
    table = LakeSource(pipeline, job)
    writer = f"replay {pipeline.name}"
    done = job.hg.run("select headgate.last_written(%s, %s)", (pipeline.stream, writer))[0][0]
    table.try_out()  # a plan that was made for a condition which does not work would bind the one that does
    plan = _plan(pipeline, job.directory / "replay.json", table, done)
    channels = job.hg.stream(pipeline.stream).info().lane_by == "channel"
    total, began = 0, time.monotonic()
    for batch in range((done or 0) + 1, plan.batches + 1):
        if job.stopping():
            return
        started = time.monotonic()
        messages = table.messages(*plan.range(batch))
        if messages is None:  # no file has such seqs
            continue
        sent = [name for name in SENT if name != "channel" or channels]
        sink = messages.select(*sent).write.format("headgate").mode("append")
        sink.options(url=job.url, stream=pipeline.stream, writer=writer, batch=batch).save()
        rows = _sent(job, pipeline.stream, writer)
        total += rows
        if pipeline.rate is not None:
            _wait(job, began + total / pipeline.rate)
        took = max(time.monotonic() - started, 0.001)
        job.say(Progress(batch, rows, total, rows / took, note=f"of {plan.batches} batches"))


class LakeSource:
    """The table, as far as it is wanted."""

    def __init__(self, pipeline: Replay, job: Job) -> None:
        self._pipeline, self._job = pipeline, job
        self._location = job.location(pipeline.source)
        table = existing(self._location)
        self._schema = schema_of(table)
        replayable(pipeline, self._location, self._schema)
        self._since = parse_time(pipeline.since, "since")
        self._until = parse_time(pipeline.until, "until")
        self._pattern = pattern(pipeline.keys) if pipeline.keys else None
        check_names(pipeline.new_keys or {})
        self._files = [file for file in files_of(table) if self._wanted(file)]
        self._tasks = cores(job.spark)

    @property
    def seqs(self) -> tuple[int, int]:
        """The seqs that there are: the first, and the one after the last."""
        if any(file.rows and "seq" not in file.least for file in self._files):
            raise InvalidArgument(
                f"the table at {self._location.uri} does not say which seqs its files hold",
                hint="write its statistics anew, for instance by a compaction",
            )
        known = [file for file in self._files if file.rows]
        return (
            min((file.least["seq"] for file in known), default=1),
            max((file.greatest["seq"] for file in known), default=0) + 1,
        )

    def messages(self, first: int, end: int) -> Any:
        """The messages of a range of seqs, in order, as a DataFrame; None when there are none for sure."""
        files = [file for file in self._files if _overlaps(file, first, end)]
        if not files:
            return None
        location, schema, width = self._location, self._schema, -(-(end - first) // self._tasks)
        keys, names, in_time = self._pattern, self._pipeline.new_keys, self._in_time()
        chosen = self._read

        def work(number: int) -> Iterator[pa.RecordBatch]:
            low, high = first + number * width, min(first + (number + 1) * width, end)
            rows = (pc.field("seq") >= low) & (pc.field("seq") < high) & in_time
            mine = [file for file in files if _overlaps(file, low, high)]
            found = pa.Table.from_batches(read_files(location, schema, mine, chosen.names, rows), chosen)
            for batch in found.sort_by("seq").to_batches(BATCH_ROWS):
                passed = matching(batch, keys) if keys is not None else batch
                yield renamed(passed, names) if names else passed

        return self._chosen(frame(self._job.spark, self._tasks, work, from_arrow_schema(chosen)))

    def try_out(self) -> None:
        """An error when the user's own SQL does not fit the columns."""
        _ = self._chosen(self._job.spark.createDataFrame([], from_arrow_schema(self._read))).schema

    @property
    def _read(self) -> pa.Schema:
        """The columns that are read: the user's SQL may be about any."""
        names = self._schema.names if self._pipeline.where or self._pipeline.key else COLUMNS
        return pa.schema([self._schema.field(name) for name in names if name in self._schema.names])

    def _chosen(self, messages: Any) -> Any:
        for name in SENT:
            if name not in messages.columns:
                messages = messages.withColumn(name, f.lit(None).cast("string"))
        if self._pipeline.where is not None:
            messages = messages.where(self._pipeline.where)
        if self._pipeline.key is not None:
            messages = messages.withColumn("key", f.expr(self._pipeline.key))
        return messages

    def _in_time(self) -> pc.Expression:
        """The condition of the rows of the time that is asked for."""
        found = pc.scalar(True)
        if self._since is not None:
            found = found & (pc.field("created_at") >= self._since)
        if self._until is not None:
            found = found & (pc.field("created_at") < self._until)
        return found

    def _wanted(self, file: DataFile) -> bool:
        """Whether a file may have messages of the time that is asked for."""
        least, greatest = file.least.get("created_at"), file.greatest.get("created_at")
        if least is None or greatest is None:
            return True
        late = self._since is not None and greatest + PRECISION < self._since
        return not late and (self._until is None or least < self._until)


PRECISION = datetime.timedelta(milliseconds=1)  # of the times in the table's log, which are cut


def _plan(pipeline: Replay, path: Path, table: LakeSource, done: int | None) -> ReplayPlan:
    """The plan of the first start. A pipeline that was changed since then is another one."""
    what = {k: v for k, v in msgspec.to_builtins(pipeline).items() if k not in ("checkpoint", "rate", "rows_per_batch")}
    spec = msgspec.json.encode(what, order="deterministic").decode()
    if path.exists():
        plan = msgspec.json.decode(path.read_bytes(), type=ReplayPlan)
        if plan.spec != spec:
            raise InvalidArgument(
                f"the pipeline {pipeline.name} was changed after it had begun",
                hint=f"give it another name, or take back the change; what it began with is in {path}",
            )
        return plan
    if done is not None:
        raise InvalidArgument(
            f"the pipeline {pipeline.name} has sent {done} batches already, and how it cut them is not in {path}",
            hint="run it where it ran before, or give it another name to replay everything again",
        )
    first, end = table.seqs
    width = pipeline.rows_per_batch or ROWS
    if pipeline.rate is not None:
        width = min(width, max(2 * pipeline.rate, 100))  # a batch is sent at once: small ones come closer to the rate
    plan = ReplayPlan(spec, first, end, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as out:
        out.write(msgspec.json.encode(plan))
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)
    return plan


def _overlaps(file: DataFile, first: int, end: int) -> bool:
    return bool(file.least.get("seq", first) < end and file.greatest.get("seq", first) >= first)


def _sent(job: Job, stream: str, writer: str) -> int:
    return int(job.hg.run("select headgate.written_messages(%s, %s)", (stream, writer))[0][0] or 0)


def _wait(job: Job, until: float) -> None:
    while not job.stopping() and time.monotonic() < until:
        time.sleep(min(0.25, max(until - time.monotonic(), 0)))
        job.alive()
