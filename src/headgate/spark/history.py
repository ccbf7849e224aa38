"""A stream with its history: what an archive has is read from the lake, the rest from the database, as one.

The seam between the two is a mark. The lake is read in one version of the table, and all that this version has lies
before the mark; the stream is read from exactly this mark on. So there is no gap and no overlap, however far the
archive gets meanwhile and whatever retention removes behind it.
"""

from __future__ import annotations

import datetime
import functools
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from psycopg import sql
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from ..errors import Error, InvalidArgument, InvalidPosition
from .database import control
from .keys import matching, pattern
from .messages import ARROW, MESSAGE
from .options import ReadOptions
from .source import BatchReader, LanesPartition, Mark, SpanReader, StreamReader, later

SEARCHED = 1000  # commits in which the last one of the archive is looked for: others compact
BATCH_ROWS = 1_000_000  # of the lake in one batch of a streaming read, unless it is said
TASK_BYTES = 64 * 1024 * 1024  # of files in one task
CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")  # variables that object stores are set up with
COMPARISONS = {">=": pc.greater_equal, "<": pc.less}


@dataclass(frozen=True)
class Bound:
    """Where a read begins or ends: a condition that holds in the lake as in the database."""

    column: str
    sign: str
    value: int | datetime.datetime

    @property
    def condition(self) -> str:
        """For the database."""
        built = sql.SQL("m.{} " + self.sign + " {}").format(sql.Identifier(self.column), sql.Literal(self.value))
        return built.as_string(None)

    @property
    def expression(self) -> pc.Expression:
        """For the lake."""
        value = pa.scalar(self.value, ARROW.field(self.column).type)
        return COMPARISONS[self.sign](pc.field(self.column), value)


class ArchivedFile(NamedTuple):
    """A file of a table."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class Version:
    """One version of an archive's table."""

    uri: str
    number: int
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> DeltaTable:
        """The table as it was then."""
        return _open(self.uri, self.number, self.options)

    def files(self) -> list[ArchivedFile]:
        """Its files, always in the same order."""
        rows = pa.table(self.open().get_add_actions(flatten=True)).to_pylist()
        rows.sort(key=lambda row: (row.get("min.seq") or 0, row["path"]))
        return [ArchivedFile(unquote(row["path"]), row["size_bytes"], row["num_records"] or 1) for row in rows]

    def rows(
        self, paths: Sequence[str], columns: Sequence[str], chosen: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of some of its files."""
        table = self.open().to_pyarrow_dataset()
        fragments = {unquote(fragment.path): fragment for fragment in table.get_fragments()}
        for path in paths:
            fragment = fragments[path]
            # what the table says of its files is left out: where it knows no least value of a column it says that all
            # values are at least null, by which pyarrow finds that no row can match
            known = ds.get_partition_keys(fragment.partition_expression)
            inside = pa.schema([f for f in table.schema if f.name not in known])
            file = ds.dataset([fragment.path], schema=inside, format="parquet", filesystem=fragment.filesystem)
            named = {
                name: ds.scalar(pa.scalar(known[name], ARROW.field(name).type)) if name in known else ds.field(name)
                for name in columns
            }
            yield from file.to_batches(columns=named, filter=chosen)


@dataclass(frozen=True)
class Seam:
    """Where the lake ends and the stream goes on."""

    version: Version
    mark: Mark


class LakeFiles(InputPartition):
    """Files of the lake that one task reads."""

    def __init__(self, version: Version, paths: Sequence[str], after: Sequence[Any] | None = None) -> None:
        super().__init__(None)
        self.version = version
        self.paths = list(paths)
        self.after = after
        """Tick and pos of the mark before which rows are left out."""


def find_seam(reading: ReadOptions) -> Seam:
    """The archive of the stream, and how far it is."""
    stream = reading.target.stream
    known = control(reading.target.url).run(
        "select name, place, headgate.archive_mark(stream, name) from headgate.archives where stream = %s order by 1",
        (stream,),
    )
    chosen = [row for row in known if reading.archive in (None, row[0])]
    if not chosen:
        wanted = "no archive" if reading.archive is None else f'no archive "{reading.archive}"'
        raise InvalidArgument(
            f'stream "{stream}" has {wanted}', hint="run a pipeline of kind archive, or leave the option history out"
        )
    if len(chosen) > 1:
        raise InvalidArgument(
            f'stream "{stream}" has several archives',
            hint='.option("archive", name), one of ' + ", ".join(row[0] for row in chosen),
        )
    name, uri, noted = chosen[0]
    # the note was read first, and is made after the commit: this version has everything up to it
    options = _credentials(uri)
    table = _open(uri, None, options)
    holds = table.metadata().configuration.get("headgate.stream", stream)
    if holds != stream:
        raise InvalidArgument(f"the table at {uri} holds the stream {holds}", hint="archive each stream by itself")
    return Seam(Version(uri, table.version(), options), later(noted, _committed(table, name)))


def bounds(reading: ReadOptions) -> list[Bound]:
    """Where a read with history begins and ends."""
    found = []
    for given, sign in ((reading.start, ">="), (reading.end, "<")):
        if given in ("beginning", "latest", "end"):
            continue
        number = re.fullmatch(r"(?:seq:)?(\d{1,18})", given.strip())
        if number:
            found.append(Bound("seq", sign, int(number[1])))
            continue
        try:
            moment = datetime.datetime.fromisoformat(given.strip())
        except ValueError:
            raise InvalidPosition(
                f'"{given}" is not a position in a stream with its history',
                hint="say beginning, latest, a seq, or a time such as 2026-01-31T12:00:00Z",
            ) from None
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        found.append(Bound("created_at", sign, zoned))
    return found


class _History(SpanReader):
    """What batch and streaming reads with history share."""

    def __init__(self, reading: ReadOptions, cores: int) -> None:
        super().__init__(reading, cores)
        self.bounds = bounds(reading)
        self.keys = pattern(reading.filter) if reading.filter else None

    def live(self, start: Mark, end: Mark) -> list[LanesPartition]:
        """The tasks that read from the database. Bounds are checked there, so their columns have to be read."""
        names = self.reading.columns
        missing = [b.column for b in self.bounds if names is not None and b.column not in names]
        return self.plan(start, end, [b.condition for b in self.bounds], extra=missing)

    def lake(
        self, version: Version, files: Sequence[ArchivedFile], after: Sequence[Any] | None = None
    ) -> list[LakeFiles]:
        """The tasks that read files, several small ones in each."""
        tasks: list[list[str]] = []
        room = 0
        for file in files:
            if not tasks or room < file.bytes:
                tasks.append([])
                room = TASK_BYTES
            tasks[-1].append(file.path)
            room -= file.bytes
        return [LakeFiles(version, paths, after) for paths in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task, as Arrow batches."""
        if isinstance(partition, LakeFiles):
            return self._from_lake(partition)
        return super().read(partition)

    def _from_lake(self, part: LakeFiles) -> Iterator[pa.RecordBatch]:
        conditions = [bound.expression for bound in self.bounds]
        if part.after is not None:
            tick, pos = part.after  # rows carry the tick of the mark up to which they were archived
            beyond = pc.field("tick") > tick
            conditions.append(
                beyond if pos is None else beyond | ((pc.field("tick") == tick) & (pc.field("seq") > pos))
            )
        chosen = functools.reduce(operator.and_, conditions) if conditions else None
        wanted = list(self.reading.columns or MESSAGE.names)
        columns = [*wanted, "key"] if self.keys is not None and "key" not in wanted else wanted
        schema = pa.schema([ARROW.field(name) for name in columns])
        for batch in part.version.rows(part.paths, columns, chosen):
            cast = [batch.column(f.name).cast(f.type) for f in schema]
            found = pa.RecordBatch.from_arrays(cast, schema=schema)
            if self.keys is not None:
                found = matching(found, self.keys)
            if found.num_rows:
                yield found.select(wanted)


class HistoryReader(_History, BatchReader):
    """`spark.read.format("headgate").option("history", True)`."""

    def partitions(self) -> Sequence[InputPartition]:
        if self.reading.start in ("latest", "end") or self.reading.end == "beginning":
            mark = self.mark("latest")
            return [LanesPartition(self._nothing(mark))]
        seam = find_seam(self.reading)
        end = self._ask("headgate.next_mark(%s, %s)", json.dumps(seam.mark))
        parts = [*self.lake(seam.version, seam.version.files()), *self.live(seam.mark, end)]
        return parts or [LanesPartition(self._nothing(seam.mark))]


class HistoryStreamReader(_History, StreamReader):
    """`spark.readStream.format("headgate").option("history", True)`.

    While the lake is read an offset is the mark of the seam with what is read of the lake (`lake`: uri, version,
    files); afterwards it is a mark like any other. Reading a lake takes time, in which the archive goes on and
    retention removes what is behind it: then a newer version is read next, without what lies before the old seam
    (`since`, `after`).
    """

    _known: tuple[str, Version, list[ArchivedFile]] | None = None

    def initialOffset(self) -> Mark:  # noqa: N802 - Spark's name
        if self.reading.start in ("latest", "end"):
            return self.mark("latest")
        seam = find_seam(self.reading)
        return {**seam.mark, "lake": {"uri": seam.version.uri, "version": seam.version.number, "files": 0}}

    def latestOffset(self, start: Mark, limit: ReadLimit) -> Mark:  # noqa: N802
        if "lake" not in start:
            return super().latestOffset(start, limit)
        _, files = self._version(start["lake"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_ROWS
        done, rows = start["lake"]["files"], 0
        while done < len(files) and (rows == 0 or rows + files[done].rows <= most):
            rows += files[done].rows
            done += 1
        if done < len(files):
            return {**start, "lake": {**start["lake"], "files": done}}
        return self._onward(start)

    def partitions(self, start: Mark, end: Mark) -> Sequence[InputPartition]:
        if "lake" not in start:
            return self.live(start, end)
        version, files = self._version(start["lake"])
        same = "lake" in end and end["lake"]["version"] == version.number
        chosen = files[start["lake"]["files"] : end["lake"]["files"] if same else len(files)]
        return self.lake(version, chosen, start["lake"].get("after")) or [LakeFiles(version, [])]

    def _onward(self, start: Mark) -> Mark:
        """Where it goes on when the files are read: in the stream, or in what the lake got in the meantime."""
        seam = {name: value for name, value in start.items() if name != "lake"}
        now = self._patiently("headgate.next_mark(%s, %s)", json.dumps(seam))
        if self._patiently("headgate.removed_between(%s, %s, %s)::text", json.dumps(seam), json.dumps(now)) is None:
            return seam
        newer = find_seam(self.reading)
        if later(newer.mark, seam) == seam:
            return seam
        lake = {"uri": newer.version.uri, "version": newer.version.number, "files": 0}
        return {
            **newer.mark,
            "lake": {**lake, "since": start["lake"]["version"], "after": [seam["tick"], seam.get("pos")]},
        }

    def _version(self, lake: Mapping[str, Any]) -> tuple[Version, list[ArchivedFile]]:
        """The version of the table that an offset names, and those of its files that are to be read."""
        named = json.dumps([lake["uri"], lake["version"], lake.get("since")])
        if self._known is None or self._known[0] != named:
            version = Version(lake["uri"], lake["version"], _credentials(lake["uri"]))
            files = version.files()
            if "since" in lake:
                old = {f.path for f in Version(version.uri, lake["since"], version.options).files()}
                files = [f for f in files if f.path not in old]
            self._known = named, version, files
        return self._known[1:]


def _credentials(uri: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(CREDENTIALS)} if "://" in uri else {}


def _open(uri: str, version: int | None, options: Mapping[str, str]) -> DeltaTable:
    try:
        return DeltaTable(uri, version=version, storage_options=dict(options) or None)
    except (DeltaError, OSError) as error:
        raise Error(
            f"the table at {uri} cannot be opened: {error}",
            hint="can this machine reach it, and are the credentials in the environment?",
        ) from error


def _committed(table: DeltaTable, archive: str) -> Mark | None:
    """The mark in the newest commit of an archive's batch."""
    for commit in table.history(SEARCHED):
        said = json.loads(commit.get("headgate", "{}"))
        if said.get("writer") == archive and (said.get("state") or {}).get("mark"):
            mark: Mark = said["state"]["mark"]
            return mark
    return None
