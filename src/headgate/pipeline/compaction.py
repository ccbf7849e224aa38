"""Small files of a table, put together by Spark's tasks. The driver sees what the table's log says of files, and makes
objects only of those that are to be put together, so many at a time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ..lake.files import DataFile, binned, read_files, write_files
from ..lake.table import LakeTable, Writer, file_of, schema_of
from .run import Job
from .spark_ui import describe
from .tasks import in_tasks

SMALL = 8 * 1024 * 1024  # bytes of a file that is small
LARGE = 64 * 1024 * 1024  # what small files are put together to
MANY = 8  # small files in one partition that are worth putting together: rewriting fewer costs more than it saves
AT_ONCE = 10_000  # files in one commit: a bound on what the driver holds


def compact(job: Job, lake: LakeTable, writer: Writer) -> int:
    """Puts small files together where a partition has many; returns how many are gone. Rows stay as they are: their
    order is that of seq."""
    table = lake.open()
    bins = [group for group in scattered(pa.table(table.get_add_actions(flatten=True))) if len(group) > 1]
    if not bins:
        return 0
    location, schema, partition_by = lake.location, schema_of(table), lake.partition_by
    describe(job.spark, writer.name, f"{sum(map(len, bins))} small files put together")

    def work(number: int) -> Iterator[DataFile]:
        return write_files(location, schema, partition_by, read_files(location, schema, bins[number], schema.names))

    made = [msgspec.convert(item, DataFile) for item in in_tasks(job.spark, len(bins), work)]
    old = [file for group in bins for file in group]
    lake.replace(old, made, writer)
    return len(old)


def scattered(files: pa.Table) -> list[list[DataFile]]:
    """The small files of partitions that have many of them, in groups that are to be one file each."""
    small = files.filter(pc.less(files["size_bytes"], SMALL))
    by = [name for name in small.column_names if name.startswith("partition.")]
    texts = [pc.fill_null(small[name].cast(pa.string()), "\0") for name in by]
    partition = pc.binary_join_element_wise(*texts, "\1") if by else pa.array([""] * len(small), pa.string())
    counts = pc.value_counts(partition)
    crowded = counts.field("values").filter(pc.greater_equal(counts.field("counts"), MANY))
    small = small.append_column("partition", partition).filter(pc.is_in(partition, crowded))
    order = [("partition", "ascending"), ("min.seq", "ascending")]
    small = small.sort_by([key for key in order if key[0] in small.column_names]).slice(0, AT_ONCE)
    groups: list[list[DataFile]] = []
    for name in pc.unique(small["partition"]):
        mine = small.filter(pc.equal(small["partition"], name)).drop_columns("partition")
        groups += binned([file_of(row) for row in mine.to_pylist()], LARGE)
    return groups
