"""Several streams in one read, by their names or by a pattern, with a column `stream`.

An offset has a mark for each stream (see source.py), and its id, by which a stream is told from another one that got
its name later:
  streams, ids   by name
  new            where those begin that this offset is the first to have
So a batch that is repeated reads the same of each stream, also of one that had just appeared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ..errors import StreamNotFound
from .database import ask, control, names
from .options import StreamTarget
from .source import BatchReader, LanesPartition, Mark, SpanReader, log, patiently

Offset = dict[str, Any]

IDLE = 0.01  # seconds that each stream adds to the wait between two looks when there was nothing new ...
LONGEST = 0.5  # ... up to so many: Spark asks as often as it can


class EmptyPartition(InputPartition):
    """A task without rows: Spark asks for at least one."""


class _Several(SpanReader):
    """What batch and streaming reads of several streams share."""

    def chosen(self) -> dict[str, int]:
        """The streams that there are now, with their ids."""
        r = self.reading
        found = control(r.target.url).run(
            "select stream, id from headgate.chosen_streams(%s::text[], %s::text[])",
            (names(r.streams), names(r.pattern)),
        )
        return dict(found)

    def one(self, stream: str, others: int) -> BatchReader:
        """A reader of one of them. Cores are shared out among those that are read at once."""
        r = self.reading
        columns = None if r.columns is None else tuple(name for name in r.columns if name != "stream") or ("seq",)
        target = StreamTarget(r.target.url, stream)
        alone = replace(r, target=target, columns=columns, streams=None, pattern=None)
        return BatchReader(alone, max(self.cores // max(others, 1), 1))

    def named(self, stream: str, tasks: Sequence[LanesPartition]) -> list[LanesPartition]:
        """The tasks, which also say which stream they read."""
        for task in tasks:
            if "stream" in self.reading.names:
                task.same["stream"] = stream
        return list(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task, as Arrow batches."""
        return iter(()) if isinstance(partition, EmptyPartition) else super().read(partition)


class SeveralReader(_Several, DataSourceReader):
    """`spark.read.format("headgate").option("streams", "a,b")`."""

    where: Sequence[str] = ()

    def partitions(self) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        chosen = self.chosen()
        for stream in chosen:
            reader = self.one(stream, len(chosen))
            reader.where = self.where
            found += self.named(stream, reader.tasks())
        return found or [EmptyPartition(None)]


class SeveralStreamReader(_Several, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("headgate").option("streamPattern", "orders.*")`.

    A stream that a pattern finds later is read from its beginning on, from the next batch on. One that was dropped
    ends the query, unless `failOnDataLoss` is false: what was unread in it is lost.
    """

    until: Mapping[str, Mark] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        chosen = self.chosen()
        return {"streams": self._marks(chosen, self.reading.start), "ids": chosen}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.reading.max_rows is None else ReadMaxRows(self.reading.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.until = self._marks(self.chosen(), "latest")

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        chosen = patiently(self.chosen)
        return {"streams": patiently(lambda: self._marks(chosen, "latest")), "ids": chosen}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        found: Offset = patiently(lambda: self._next(start, limit))
        if found["streams"] == start["streams"] and found["ids"] == start["ids"]:
            if self.until is None:
                time.sleep(min(IDLE * len(found["ids"]), LONGEST))
            return start
        return found

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        spans = {name: (self._begin(name, start, end), mark) for name, mark in end["streams"].items()}
        there = self._left(end["ids"])
        read = {name: span for name, span in spans.items() if name in there and span[0] != span[1]}
        found: list[InputPartition] = []
        for name, span in read.items():
            found += self.named(name, self.one(name, len(read)).plan(*span))
        return found

    def commit(self, end: Offset) -> None:
        """Nothing hangs on it."""

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far each stream is read next."""
        there = self.chosen()
        left = self._left(start["ids"], there)
        begin = {name: mark for name, mark in start["streams"].items() if name in left}
        # those that appeared are read from their beginning on: nobody can have read what they have
        new = {name: id for name, id in there.items() if name not in begin}
        if self.until is not None:
            new = {name: id for name, id in new.items() if name in self.until}
        begun = self._marks(new, "beginning")
        most = self._shares({**begin, **begun}, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        ends = {name: self._end(name, mark, most.get(name)) for name, mark in {**begin, **begun}.items()}
        found: Offset = {"streams": ends, "ids": {name: there[name] for name in ends}}
        return {**found, "new": begun} if begun else found

    def _end(self, stream: str, start: Mark, most: int | None) -> Mark:
        if self.until is not None and stream not in self.until:
            return start
        until = None if self.until is None else json.dumps(self.until[stream])
        call = "select headgate.next_mark(%s, %s, %s, %s)"
        mark: Mark = ask(self.reading.target.url, call, (stream, json.dumps(start), most, until))
        return mark

    def _begin(self, stream: str, start: Offset, end: Offset) -> Mark:
        """Where a stream is read from, up to an offset."""
        same = start["ids"].get(stream) == end["ids"][stream]
        mark: Mark = start["streams"][stream] if same else end["new"][stream]
        return mark

    def _left(self, ids: Mapping[str, int], there: Mapping[str, int] | None = None) -> set[str]:
        """Those that are still there; an error, or a warning, when others were dropped."""
        there = self.chosen() if there is None else there
        gone = sorted(name for name, id in ids.items() if there.get(name) != id)
        for name in gone:
            if self.reading.fail_on_data_loss:
                raise StreamNotFound(
                    f'stream "{name}" was dropped while it was being read',
                    hint='read on without it: .option("failOnDataLoss", False)',
                )
            log.warning("stream %s was dropped while it was being read", name)
        return set(ids) - set(gone)

    def _marks(self, streams: Mapping[str, int], position: str) -> dict[str, Mark]:
        return {name: self.one(name, 1).mark(position) for name in streams}

    def _shares(self, marks: Mapping[str, Mark], most: int | None) -> dict[str, int]:
        """How many messages each stream may give, by what it has."""
        if most is None:
            return {}
        url = self.reading.target.url
        waiting = {
            name: ask(url, "select headgate.unread_since(%s, %s)", (name, json.dumps(mark)))
            for name, mark in marks.items()
        }
        total = max(sum(waiting.values()), 1)
        return {name: max(most * count // total, 1) for name, count in waiting.items()}
