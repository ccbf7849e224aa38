"""Changes merged into a table of the latest messages, by Spark's tasks: each has the keys of some buckets.

A bucket is a partition of the table, by a hash of the key. Its task goes through the bucket's files, a few rows at a
time, leaves out the rows that the changes replace, and writes the rest anew; large files without such rows stay. So
what a task holds are the changes of a bucket, and what the driver sees are names of files and counts. All buckets of a
batch are one commit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..lake.files import DataFile, read_files, write_files
from ..lake.table import LakeTable, Writer, already_running

BUCKET = "bucket"
LARGE = 64 * 1024 * 1024  # bytes of a file that is written anew only for its own rows

FORMAT = "headgate_latest"


@dataclass
class MergeResult(WriterCommitMessage):
    """What one task has done."""

    files: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)
    rows: int = 0
    keys: int = 0


class MergeWriter(DataSourceArrowWriter):
    """Tasks merge, the driver commits."""

    def __init__(self, lake: LakeTable, there: Mapping[int, Sequence[DataFile]], writer: Writer) -> None:
        self._lake, self._there, self._writer = lake, there, writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        done = MergeResult()
        for bucket, batches in itertools.groupby(_of_one_bucket(iterator), lambda part: part[0]):
            changes = pa.Table.from_batches([batch for _, batch in batches]).combine_chunks()
            done.rows += pc.sum(changes["rows"]).as_py()
            done.keys += len(changes)
            self._merge(changes, self._there.get(bucket, ()), done)
        return done

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        merged = [m for m in messages if isinstance(m, MergeResult)]
        files, removed = [f for m in merged for f in m.files], [f for m in merged for f in m.removed]
        state = {
            **(self._writer.state or {}), "rows": sum(m.rows for m in merged), "keys": sum(m.keys for m in merged),
        }  # fmt: skip
        if not self._lake.add(files, self._writer.name, self._writer.batch, state, removed):
            raise already_running(self._writer.name)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Undoes nothing: files in no commit are vacuumed."""

    def _merge(self, changes: pa.Table, files: Sequence[DataFile], done: MergeResult) -> None:
        lake = self._lake
        merge = _BucketMerge(changes)
        for file in files:
            if file.size < LARGE:
                continue
            rows = read_files(lake.location, lake.schema, [file], ("key", "seq"))
            if any(merge.concerns(batch) for batch in rows):
                done.removed.append(file)
                done.files += self._written(merge.left(self._rows([file])))
        small = [file for file in files if file.size < LARGE]
        done.removed += small
        done.files += self._written(itertools.chain(merge.left(self._rows(small)), merge.new()))

    def _rows(self, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        return read_files(self._lake.location, self._lake.schema, files, self._lake.schema.names)

    def _written(self, rows: Iterator[pa.RecordBatch]) -> list[DataFile]:
        return list(write_files(self._lake.location, self._lake.schema, self._lake.partition_by, rows))


class _BucketMerge:
    """The changes of a bucket, and which of them are older than what the table has."""

    def __init__(self, changes: pa.Table) -> None:
        self._changes = changes
        self._keys = changes["key"].combine_chunks()
        self._seqs = changes["seq"].combine_chunks()
        self._late: list[pa.Array] = []  # a transaction that committed late may have a lower seq

    def concerns(self, batch: pa.RecordBatch) -> bool:
        """Whether some of these rows are changed."""
        return bool(pc.any(pc.is_in(batch.column("key"), self._keys)).as_py())

    def left(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that stay as they are."""
        for batch in batches:
            at = pc.index_in(batch.column("key"), self._keys)
            newer = pc.greater_equal(batch.column("seq"), self._seqs.take(at)).fill_null(False)
            self._late.append(at.filter(newer))
            yield batch.filter(pc.or_(at.is_null(), newer))

    def new(self) -> Iterator[pa.RecordBatch]:
        """The rows that come in; to be asked when those that are there were gone through."""
        places = pa.array(range(len(self._changes)), pa.int32())
        late = pc.is_in(places, pa.concat_arrays([*self._late, pa.array([], pa.int32())]))
        gone = self._changes["gone"].combine_chunks().fill_null(False)
        yield from self._changes.filter(pc.invert(pc.or_(gone, late))).to_batches()


def _of_one_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows come sorted by their bucket."""
    for batch in batches:
        column = batch.column(BUCKET)
        for bucket in pc.unique(column).to_pylist():
            yield bucket, batch.filter(pc.equal(column, bucket))


def merge_format(lake: LakeTable, there: Mapping[int, Sequence[DataFile]], writer: Writer) -> type[DataSource]:
    """A format that merges what is written into this table, as one batch of a writer."""

    class Format(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return MergeWriter(lake, there, writer)

    return Format


def by_bucket(files: Sequence[DataFile]) -> dict[int, list[DataFile]]:
    """The files of each bucket; a table without buckets is one."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        found.setdefault(int(file.partition.get(BUCKET) or 0), []).append(file)
    return found


def counted(state: Any) -> tuple[int, int]:
    """Messages and keys of the batch that a commit speaks of."""
    return state["rows"], state["keys"]
