"""Reading a stream: a task for each range of lanes, between two marks (see sql/functions/ticks/positions.sql)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import ConnectionFailed, MessagesRemoved
from ..lake.secrets import Secret
from .database import ask, batches, control, names
from .messages import ARROW, WITH_STREAM
from .options import ReadOptions

log = logging.getLogger("headgate.spark")

Mark = dict[str, Any]

PATIENCE = 60  # seconds for which a database may be away before a streaming query fails


class LanesPartition(InputPartition):
    """What one task reads."""

    def __init__(
        self, query: str, span: tuple[str, str, str] | None = None, same: Mapping[str, int | str | None] | None = None
    ) -> None:
        super().__init__(None)
        self.query = query
        self.span = span
        """The stream and two marks, when nothing between them may be missing."""
        self.same = dict(same or {})
        """Columns that have the same value in all rows, which the query leaves out: to read a column costs as much."""

    def batches(self, url: Secret, columns: Sequence[str] = ARROW.names) -> Iterator[pa.RecordBatch]:
        """The messages, as Arrow batches with these columns."""
        for batch in batches(url, self.query):
            yield self._whole(batch, columns) if self.same else batch

    def _whole(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        kinds = {name: WITH_STREAM.field(name).type for name in self.same}
        made = {name: pa.repeat(pa.scalar(v, kinds[name]), batch.num_rows) for name, v in self.same.items()}
        arrays = [made[name] if name in made else batch.column(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, list(columns))


class SpanReader:
    """What batch and streaming reads share."""

    def __init__(self, reading: ReadOptions, cores: int) -> None:
        self.reading = reading
        self.cores = cores

    def mark(self, position: str) -> Mark:
        """The mark at a position."""
        mark: Mark = self._ask("headgate.mark(%s, %s)", position)
        return mark

    def plan(
        self, start: Mark, end: Mark, where: Sequence[str] = (), *, extra: Sequence[str] = ()
    ) -> list[LanesPartition]:
        """The tasks that read the messages between two marks. `extra` are columns that only the conditions need."""
        if start == end:
            return []
        r = self.reading
        span = (r.target.stream, json.dumps(start), json.dumps(end))
        self._check(span)
        same = {} if where else self._same(end)  # conditions may need them
        columns = [name for name in r.columns or ARROW.names if name not in same] or ["seq"]
        found = control(r.target.url).run(
            "select query from headgate.read_plan(%s, %s, %s, %s::text[], %s::text[], %s::int, %s::int, %s)",
            (*span, names(r.filter), names([*columns, *extra]), r.tasks or self.cores, r.lanes_per_task,
             r.rows_per_task),
        )  # fmt: skip
        complete = span if r.fail_on_data_loss else None
        return [
            LanesPartition(narrowed(query, where, r.columns if extra else None), complete, same) for (query,) in found
        ]

    def _same(self, end: Mark) -> dict[str, int | None]:
        """The columns that are wanted and have the same value in all messages up to a mark."""
        found = {"tick": end["tick"]}
        if not self._ask("headgate.has_channels(%s)"):
            found["channel"] = None
        return {name: value for name, value in found.items() if name in (self.reading.columns or ARROW.names)}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task, as Arrow batches."""
        assert isinstance(partition, LanesPartition)
        yield from partition.batches(self.reading.target.url, self.reading.names)
        # what is being read is not removed, but it may have been after the tasks were planned
        if partition.span is not None:
            self._check(partition.span)

    def _check(self, span: tuple[str, str, str]) -> None:
        """An error, or a warning, when some of a span was removed."""
        removed = ask(self.reading.target.url, "select headgate.removed_between(%s, %s, %s)::text", span)
        if removed is None:
            return
        if self.reading.fail_on_data_loss:
            raise MessagesRemoved(
                f'stream "{span[0]}" no longer has the messages {removed}, which were still to be read',
                hint='read on without them: .option("failOnDataLoss", False); or keep messages longer',
            )
        log.warning("stream %s no longer has the messages %s, which were still to be read", span[0], removed)

    def _ask(self, call: str, *params: Any) -> Any:
        return ask(self.reading.target.url, f"select {call}", (self.reading.target.stream, *params))


def narrowed(query: str, where: Sequence[str], columns: Sequence[str] | None = None) -> str:
    """The query with further conditions, and perhaps fewer columns."""
    chosen = ", ".join(f"m.{name}" for name in columns) if columns else "*"
    return f"select {chosen} from ({query}) m where {' and '.join(where)}" if where else query  # noqa: S608 - ours


def later(noted: Mark, committed: Mark | None) -> Mark:
    """How far an archive is, by what it noted and what its table says.

    It notes after it commits, so what it committed is later after a crash; what it noted, when there was nothing to
    commit.
    """
    return noted if committed is None or _rank(noted) > _rank(committed) else committed


def _rank(mark: Mark) -> tuple[int, float]:
    return mark["tick"], mark.get("pos", float("inf"))


class BatchReader(SpanReader, DataSourceReader):
    """`spark.read.format("headgate")`."""

    where: Sequence[str] = ()

    def partitions(self) -> Sequence[InputPartition]:
        return self.tasks() or [LanesPartition(self._nothing(self.mark("beginning")))]

    def tasks(self) -> list[LanesPartition]:
        """The tasks that read from start to end."""
        start = self.mark(self.reading.start)
        end = self._ask("headgate.end_mark(%s, %s, %s)", json.dumps(start), self.reading.end)
        return self.plan(start, end, self.where)

    def _nothing(self, start: Mark) -> str:
        """A query without rows: Spark asks for at least one task."""
        return self._ask("query from headgate.read_plan(%s, %s, %s)", json.dumps(start), json.dumps(start))  # type: ignore[no-any-return]


class StreamReader(SpanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("headgate")`. Its offsets are marks, which end at ticks."""

    until: Mark | None = None

    def initialOffset(self) -> Mark:  # noqa: N802 - Spark's name
        return self.mark(self.reading.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.reading.max_rows is None else ReadMaxRows(self.reading.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.until = self.mark("latest")

    def latestOffset(self, start: Mark, limit: ReadLimit) -> Mark:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        until = None if self.until is None else json.dumps(self.until)
        mark: Mark = self._patiently("headgate.next_mark(%s, %s, %s, %s)", json.dumps(start), most, until)
        return mark

    def reportLatestOffset(self) -> Mark | None:  # noqa: N802
        mark: Mark = self._patiently("headgate.mark(%s)")
        return mark

    def partitions(self, start: Mark, end: Mark) -> Sequence[InputPartition]:
        return self.plan(start, end)

    def commit(self, end: Mark) -> None:
        """Nothing hangs on it: it comes one batch late, and for the last batch perhaps never."""

    def _patiently(self, call: str, *params: Any) -> Any:
        return patiently(lambda: self._ask(call, *params))


def patiently(call: Callable[[], Any]) -> Any:
    """What a call gives. An error ends a streaming query, so a database that restarts is waited for."""
    began = time.monotonic()
    while True:
        try:
            return call()
        except ConnectionFailed:
            if time.monotonic() > began + PATIENCE:
                raise
            time.sleep(0.5)
