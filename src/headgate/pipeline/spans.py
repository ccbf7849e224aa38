"""Reading a stream in batches whose progress is kept where their result goes: in the same commit, so that it cannot
differ.

Each batch is a span between two marks (see ticks/positions.sql), read by one task for each range of lanes. A
task reads from PostgreSQL and works where it is: rows do not pass through the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from ..errors import InvalidArgument, MessagesRemoved
from ..spark.options import ReadOptions, StreamTarget
from ..spark.source import BatchReader, LanesPartition, Mark
from .run import Job
from .spec import SECONDS, Archive, Latest
from .tasks import cores, in_tasks

IDLE = 0.25  # seconds between two looks at a stream that has nothing new
LEAST = 10_000  # messages in a task: fewer are not worth one, nor the file that it writes
SHORTEST = 1.0  # seconds from one batch to the next while little comes: a commit a second makes few enough files

TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]


@dataclass(frozen=True)
class BatchSpan:
    """What one batch reads."""

    start: Mark
    end: Mark
    parts: list[LanesPartition]


class BatchSpans:
    """The spans of a stream, one after the other."""

    def __init__(self, job: Job, pipeline: Archive | Latest) -> None:
        self._job = job
        self._pipeline = pipeline
        self._stream = pipeline.stream
        reading = ReadOptions(
            StreamTarget(job.url, pipeline.stream),
            filter=tuple(pipeline.filter) if pipeline.filter else None,
            fail_on_data_loss=not pipeline.skip_removed,
        )
        self._reader = BatchReader(reading, cores(job.spark))

    def mark(self, position: str) -> Mark:
        """The mark at a position."""
        return self._reader.mark(position)

    def ahead(self, mark: Mark, most: int) -> Iterator[BatchSpan]:
        """The spans from a mark on, as the pipeline wants to run: until now, or until it is stopped."""
        until = self.mark("latest") if self._pipeline.run == "once" else None
        pause = interval(self._pipeline.run)
        while not self._job.stopping():
            began, before = time.monotonic(), mark
            while not self._job.stopping():
                end = self._next(mark, most, until)
                if end == mark:
                    break
                yield self._span(mark, end)
                mark = end
                if until is None and "pos" not in mark:  # all that was there is read; a moment later there is more
                    break
            if until is not None:
                return
            if pause:
                self._job.waiting(max(began + pause - time.monotonic(), 0))
            self._pause(began + (pause or (IDLE if mark == before else SHORTEST)))

    def _span(self, start: Mark, end: Mark) -> BatchSpan:
        # as many tasks as run at once, whatever the number of lanes: nothing here needs a key to be in one task
        rows = max(-(-_seqs(start, end) // self._reader.cores), LEAST)
        self._reader.reading = replace(self._reader.reading, tasks=1, rows_per_task=rows)
        try:
            return BatchSpan(start, end, self._reader.plan(start, end))
        except MessagesRemoved as error:
            raise MessagesRemoved(
                str(error).splitlines()[0], hint="go on without them: skip_removed = true; or keep messages longer"
            ) from error

    def _next(self, mark: Mark, most: int, until: Mark | None) -> Mark:
        call = "select headgate.next_mark(%s, %s, %s, %s)"
        encoded = None if until is None else msgspec.json.encode(until).decode()
        found = self._job.hg.run(call, (self._stream, msgspec.json.encode(mark).decode(), most, encoded))[0][0]
        end: Mark = found if isinstance(found, dict) else msgspec.json.decode(found)
        return end

    def _pause(self, until: float) -> None:
        while not self._job.stopping() and time.monotonic() < until:
            time.sleep(min(IDLE, max(until - time.monotonic(), 0)))
            self._job.alive()


def _seqs(start: Mark, end: Mark) -> int:
    """About how many messages lie between two marks."""
    since = start.get("since", start)
    return int(max(end.get("pos", end["hi"]) - max(start.get("pos", 0), since["lo"]), 0))


def interval(run: str) -> float:
    """The seconds between two looks at the stream."""
    found = SECONDS.match(run)
    if not found:
        return 0
    return int(found[1]) * {"second": 1, "minute": 60, "hour": 3600, "day": 86400}[found[2]]


def read_in_tasks(job: Job, span: BatchSpan, work: TaskFunction, name: str) -> list[Any]:
    """Has each task of a span read its messages and work on them, for a pipeline."""
    url, parts = job.url, span.parts
    return in_tasks(job.spark, len(parts), lambda number: work(parts[number].batches(url)), name)


def refuse_mark_of_another_stream(mark: Mark, newest: Mark, what: str) -> None:
    """A mark that is ahead of the stream comes from another one: going on from it would skip messages."""
    if mark["tick"] > newest["tick"]:
        raise InvalidArgument(
            f"{what} is ahead of the stream: it was written from another one",
            hint="write to another place, or give the pipeline another name",
        )
