"""Delta tables without a Spark extension: tasks write Parquet files, the driver commits them.

One commit adds all files of a batch, says which batch of which writer it was (an application transaction, which Delta
keeps for ever) and how far the writer is (the mark, in the commit's own words). So a batch is in the table once or
not at all, and files of attempts that failed are in no commit: nobody reads them, and `vacuum` removes them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from ..errors import Conflict, Error, InvalidArgument
from .files import DataFile
from .points import point
from .storage import Location

STATE = "headgate"  # what our part of a commit's words is called
REACHABLE = "is the place right, may it be written to, and are the credentials in the environment?"
SEARCHED = (1, 20, 1000)  # newest commits in which the last one of a writer is looked for


@dataclass(frozen=True)
class Writer:
    """Who writes in batches, and how far it is."""

    name: str
    batch: int = -1
    """The last one that is in the table; -1: none."""
    state: Mapping[str, Any] | None = None
    """What it said with it; None also when it was too long ago."""


class LakeTable:
    """A Delta table of ours."""

    def __init__(
        self,
        location: Location,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        *,
        stream: str | None = None,
        pipeline: str | None = None,
        grows: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.location, self.schema, self.partition_by = location, schema, list(partition_by)
        self._grows = grows  # whether the table may have more columns than these
        self._properties = dict(properties or {})  # that it is made with
        # a table that says whose it is takes nothing from others: seqs of two streams, or twice the same, would not fit
        self._of = {f"headgate.{k}": v for k, v in (("stream", stream), ("pipeline", pipeline)) if v is not None}

    def open(self) -> DeltaTable:
        """The table, made if it is not there; an error when it is another kind of table."""
        found = find(self.location)
        if found is None:
            found = self._made()
        self._check(found)
        return found

    def writer(self, name: str) -> Writer:
        """How far a writer is."""
        table = self.open()
        batch = table.transaction_version(name)
        if batch is None:
            return Writer(name)
        for many in SEARCHED:  # usually it is the newest one, and reading commits takes a while
            for commit in table.history(many):
                said = json.loads(commit.get(STATE, "{}"))
                if said.get("writer") == name and said.get("batch") == batch:
                    return Writer(name, batch, said.get("state"))
        return Writer(name, batch)

    def add(
        self,
        files: Sequence[DataFile],
        writer: str,
        batch: int,
        state: Mapping[str, Any] | None = None,
        removed: Sequence[DataFile] = (),
    ) -> bool:
        """Adds the files of a batch, and removes those that they replace; False when the batch, or a later one, was
        added before."""
        table = self.open()
        known = table.transaction_version(writer)
        if known is not None and known >= batch:
            return False
        point("written", self.location.uri)
        try:
            table.create_write_transaction(
                _actions(files, removed), "append", DeltaSchema.from_arrow(self.schema), self.partition_by,
                commit_properties=commit_properties(writer, batch, state),
            )  # fmt: skip
        except DeltaError as error:
            if "oncurrent" in str(error):
                raise already_running(writer) from error
            raise
        point("added", self.location.uri)
        self.sync_to_disk(table)
        return True

    def extend(self, columns: Sequence[pa.Field], writer: Writer) -> None:
        """Adds columns, which are null in all rows that are there."""
        table = self.open()
        fields = DeltaSchema.from_arrow(pa.schema(columns)).fields
        table.alter.add_columns(fields, commit_properties=_properties_without_batch(writer))
        self.sync_to_disk(table)

    def rewrite(self, files: Sequence[DataFile], schema: pa.Schema, version: int, writer: Writer) -> None:
        """Puts files that were made of all rows of a version in their place, with other columns."""
        table = self.open()
        if table.version() != version:
            raise already_running(writer.name)
        table.create_write_transaction(
            _actions(files), "overwrite", DeltaSchema.from_arrow(schema), self.partition_by,
            commit_properties=_properties_without_batch(writer),
        )  # fmt: skip
        self.sync_to_disk(table)

    def sync_to_disk(self, table: DeltaTable) -> None:
        """Makes sure that the newest commit outlives a loss of power."""
        self.location.sync_to_disk(f"_delta_log/{table.version():020}.json")

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], writer: Writer) -> None:
        """Puts files with the same rows in the place of others."""
        table = self.open()
        table.create_write_transaction(
            _actions(new, old, data_change=False), "append", DeltaSchema.from_arrow(schema_of(table)),
            self.partition_by, commit_properties=_properties_without_batch(writer),
        )  # fmt: skip
        self.sync_to_disk(table)

    def count(self) -> int:
        """How many files the table has."""
        return int(pa.table(self.open().get_add_actions()).num_rows)

    def vacuum(self, writer: Writer, hours: int, *, whole: bool, known: Set[str] = frozenset()) -> set[str]:
        """Removes files that have been in no version of the table for some hours; returns which, besides those that
        are known to be gone. Those that never were in a version are found only when the whole table is listed."""
        table = self.open()
        # the log goes on naming what was removed before: that is not done again
        if not whole and known >= set(table.vacuum(hours, enforce_retention_duration=False)):
            return set()
        gone = table.vacuum(
            hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=whole,
            commit_properties=_properties_without_batch(writer),
        )
        return set(gone) - known

    def _made(self) -> DeltaTable:
        try:
            DeltaTable.create(
                self.location.uri, self.schema, mode="ignore", partition_by=self.partition_by,
                configuration={**self._properties, **self._of},
                storage_options=self.location.options or None, raise_if_key_not_exists=False,
            )  # fmt: skip
        except (DeltaError, OSError) as error:
            raise Error(
                f"the table at {self.location.uri} cannot be made: {message_of(error)}", hint=REACHABLE
            ) from error
        return existing(self.location)

    def _check(self, table: DeltaTable) -> None:
        self.check_owner(table)
        columns = schema_of(table)
        if self._grows:
            columns = pa.schema([f for f in columns if f.name in self.schema.names])
        if columns.names != self.schema.names or columns.types != self.schema.types:
            different = sorted(set(_shown(columns)) ^ set(_shown(self.schema)))
            raise InvalidArgument(
                f"the table at {self.location.uri} has other columns: {', '.join(different)}",
                hint="write to another place",
            )

    def check_owner(self, table: DeltaTable) -> None:
        """An error when the table is another pipeline's, or is cut into other partitions."""
        partitions = table.metadata().partition_columns
        if partitions != self.partition_by:
            raise InvalidArgument(
                f"the table at {self.location.uri} is partitioned by {', '.join(partitions) or 'nothing'}, "
                f"not by {', '.join(self.partition_by) or 'nothing'}",
                hint="partition_by cannot be changed later: write to another place",
            )
        about = table.metadata().configuration
        for name, wanted in self._of.items():
            if about.get(name) != wanted:
                what = name.partition(".")[2]
                there = f"the {what} {about[name]}" if name in about else "something else"
                raise InvalidArgument(
                    f"the table at {self.location.uri} is of {there}, not of the {what} {wanted}",
                    hint="a table is written by one pipeline, from one stream: write to another place",
                )


def already_running(writer: str) -> Conflict:
    """What is said when somebody else has written the batch that was to be written."""
    return Conflict(f"the pipeline {writer} runs somewhere else too", hint="run a pipeline in one place at a time")


def find(location: Location, version: int | None = None) -> DeltaTable | None:
    """The table at a place, if there is one."""
    try:
        return DeltaTable(location.uri, version=version, storage_options=location.options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise Error(f"the table at {location.uri} cannot be opened: {message_of(error)}", hint=REACHABLE) from error


def message_of(error: Exception) -> str:
    """What delta-rs says, without the way in which Rust shows it: Os { code: 2, kind: …, message: "…" }."""
    said = re.findall(r'Os \{[^}]*message: "([^"]*)"', str(error))
    return said[-1] if said else str(error).splitlines()[0]


def existing(location: Location) -> DeltaTable:
    """The table at a place."""
    found = find(location)
    if found is None:
        raise InvalidArgument(f"there is no Delta table at {location.uri}", hint="a pipeline of kind archive makes one")
    return found


def schema_of(table: DeltaTable) -> pa.Schema:
    """Its columns, with the types that Spark takes: no views, nothing large."""
    return pa.schema([pa.field(f.name, _plain(f.type)) for f in pa.schema(table.schema().to_arrow())])


def files_of(table: DeltaTable) -> list[DataFile]:
    """The files of the table's version."""
    return [file_of(row) for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()]


def file_of(row: Mapping[str, Any]) -> DataFile:
    """A file as the table's log describes it: a column for each fact about each column."""

    def facts(begin: str) -> dict[str, Any]:
        return {name.removeprefix(begin): value for name, value in row.items() if name.startswith(begin)}

    return DataFile(
        unquote(row["path"]),  # in the log it is part of a URL
        row["size_bytes"],
        row["num_records"] or 0,
        {name: None if value is None else str(value) for name, value in facts("partition.").items()},
        {name: value for name, value in facts("min.").items() if value is not None},
        {name: value for name, value in facts("max.").items() if value is not None},
    )


def commit_properties(writer: str, batch: int, state: Mapping[str, Any] | None) -> CommitProperties:
    """What a commit says of its writer, for Delta and for us."""
    return CommitProperties(
        custom_metadata=_metadata(writer, batch, state), app_transactions=[Transaction(writer, batch)]
    )


def _properties_without_batch(writer: Writer) -> CommitProperties:
    """What a commit without a batch says: how far the writer is, so that it is found among the newest commits."""
    if writer.batch < 0:
        return CommitProperties()
    return CommitProperties(custom_metadata=_metadata(writer.name, writer.batch, writer.state))


def _metadata(writer: str, batch: int, state: Mapping[str, Any] | None) -> dict[str, str]:
    return {STATE: json.dumps({"writer": writer, "batch": batch, "state": state})}


def _actions(
    added: Sequence[DataFile], removed: Sequence[DataFile] = (), *, data_change: bool = True
) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    gone = [RemoveAction(file.path, data_change, now, file.size, file.partition) for file in removed]
    return [*(AddAction(f.path, f.size, f.partition, now, data_change, _statistics(f)) for f in added), *gone]


def _statistics(file: DataFile) -> str:
    said = {"numRecords": file.rows, "minValues": file.least, "maxValues": file.greatest, "nullCount": {}}
    return msgspec.json.encode(said).decode()


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def _shown(schema: pa.Schema) -> list[str]:
    return [f"{f.name} {f.type}" for f in schema]
