"""Parquet files of a Delta table, written and read by tasks. The driver alone commits them: see lake/table.py."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from .storage import Location

ROW_GROUP = 16 * 1024 * 1024  # bytes of rows, before compression, that are gathered for one row group
OPEN = 16  # files that a task writes at once: a bound on its memory, whatever the partitions are
NOTHING = "__HIVE_DEFAULT_PARTITION__"
RANGED = ("seq", "created_at")  # the columns whose least and greatest values are kept, so that readers skip files


class DataFile(msgspec.Struct, frozen=True):
    """A file of a table."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}


class FileWriter:
    """One file. Rows are gathered into row groups that are worth compressing."""

    def __init__(self, location: Location, path: str, schema: pa.Schema, partition: dict[str, str | None]) -> None:
        self.path, self._location, self._schema, self._partition = path, location, schema, partition
        if location.local:
            (Path(location.uri) / path).parent.mkdir(parents=True, exist_ok=True)
        self._out = location.files().open_output_stream(path)
        # values of these columns repeat; a dictionary of data would be made in vain
        repeated = [name for name in schema.names if name not in ("seq", "data", "created_at")]
        self._writer = pq.ParquetWriter(
            self._out, schema, compression="zstd", compression_level=1, use_dictionary=repeated
        )
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        kinds = {f.name: f.type for f in schema if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)}
        self._ranged = [name for name in RANGED if name in kinds]  # a query may give these names to anything
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        self._gathered.append(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        for name in self._ranged:
            self._range(name, batch.column(name))
        if self._bytes >= ROW_GROUP:
            self._flush()

    def close(self) -> DataFile:
        """Finishes the file."""
        self._flush()
        self._writer.close()
        self._out.close()
        self._location.sync_to_disk(self.path)
        size = self._location.files().get_file_info(self.path).size
        return DataFile(self.path, size, self._rows, self._partition, self._least, self._greatest)

    def _flush(self) -> None:
        if self._gathered:
            self._writer.write_table(pa.Table.from_batches(self._gathered, self._schema), row_group_size=1 << 30)
        self._gathered, self._bytes = [], 0

    def _range(self, name: str, column: pa.Array) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] is None:
            return
        self._least[name] = min(found["min"], self._least.get(name, found["min"]))
        self._greatest[name] = max(found["max"], self._greatest.get(name, found["max"]))


def write_files(
    location: Location, schema: pa.Schema, partition_by: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[DataFile]:
    """Writes rows into files, one for each partition that they belong to, or more where there are many partitions."""
    body = pa.schema([f for f in schema if f.name not in partition_by])
    writers: OrderedDict[tuple[Any, ...], FileWriter] = OrderedDict()
    for batch in batches:
        for values, rows in _parts(batch, partition_by):
            writer = writers.pop(values, None)
            if writer is None:
                if len(writers) >= OPEN:
                    yield writers.popitem(last=False)[1].close()
                named = {name: _text(v) for name, v in zip(partition_by, values, strict=True)}
                writer = FileWriter(location, _path(named), body, named)
            writers[values] = writer  # the last one used is the last one closed
            writer.write(pa.RecordBatch.from_arrays([rows.column(f.name).cast(f.type) for f in body], schema=body))
    for writer in writers.values():
        yield writer.close()


def read_files(
    location: Location,
    schema: pa.Schema,
    files: Sequence[DataFile],
    columns: Sequence[str],
    rows: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of files. Columns that partitions are made by are not in the files, but known."""
    system = location.files()
    for file in files:
        inside = [f for f in schema if f.name not in file.partition]
        data = ds.dataset([file.path], schema=pa.schema(inside), format="parquet", filesystem=system)
        chosen = {
            name: _constant(file.partition[name], schema.field(name).type) if name in file.partition else ds.field(name)
            for name in columns
        }
        yield from data.to_batches(columns=chosen, filter=rows)


def binned(files: Sequence[DataFile], size: int) -> list[list[DataFile]]:
    """Files in groups of about a size, in their order."""
    bins: list[list[DataFile]] = []
    room = 0
    for file in files:
        if not bins or room < file.size:
            bins.append([])
            room = size
        bins[-1].append(file)
        room -= file.size
    return bins


def with_date(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Messages with the date and hour, in UTC, of created_at."""
    for batch in batches:
        at = batch.column("created_at").cast(pa.timestamp("us"))  # the same instant, as UTC shows it
        yield batch.append_column("date", at.cast(pa.date32())).append_column("hour", pc.hour(at).cast(pa.int32()))


def _parts(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    if not by or not batch.num_rows:
        if batch.num_rows:
            yield (), batch
        return
    found = pa.table([batch.column(name) for name in by], names=list(by)).group_by(list(by)).aggregate([]).to_pylist()
    for values in found:
        rows = batch
        if len(found) > 1:
            same = [
                pc.equal(batch.column(n), v) if v is not None else batch.column(n).is_null() for n, v in values.items()
            ]
            chosen = same[0]
            for more in same[1:]:
                chosen = pc.and_(chosen.fill_null(False), more.fill_null(False))
            rows = batch.filter(chosen)
        yield tuple(values[name] for name in by), rows


def _path(partition: Mapping[str, str | None]) -> str:
    folders = [f"{name}={quote(value, safe='')[:100] if value else NOTHING}" for name, value in partition.items()]
    return "/".join([*folders, f"part-{uuid.uuid4()}.parquet"])


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _constant(value: str | None, kind: pa.DataType) -> pc.Expression:
    return pc.scalar(pa.scalar(value, pa.string()).cast(kind))
