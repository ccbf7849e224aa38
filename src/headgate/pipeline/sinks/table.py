"""`format("headgate_table")`: a streaming query to a table of PostgreSQL, exactly once. Made for pipelines.

Each task stages its rows in a table of its own; the driver moves them all into the table in one transaction, in which
headgate.load_once() notes the query and the batch. A batch that Spark repeats is not loaded again.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from ...errors import Error, InvalidArgument
from ...lake.points import point
from ...lake.secrets import Secret, plain
from ...spark.database import rows
from ...spark.sink import this_batch

TYPES: dict[type[t.DataType], str] = {
    t.StringType: "text", t.LongType: "bigint", t.IntegerType: "integer", t.ShortType: "smallint",
    t.DoubleType: "double precision", t.FloatType: "real", t.BooleanType: "boolean", t.DateType: "date",
    t.TimestampType: "timestamptz", t.BinaryType: "bytea",
}  # fmt: skip


ROW = "headgate_row"  # what numbers staged rows


@dataclass(frozen=True)
class TargetTable:
    """A table of PostgreSQL."""

    url: Secret
    schema: str
    name: str
    keys: tuple[str, ...] = ()
    """The columns by which a row takes the place of an older one; none: rows are added."""

    @property
    def identifier(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, self.name)

    def staged(self, query: str) -> str:
        """How the names begin of what a query stages for it."""
        return f"headgate_{hashlib.sha256(f'{query} {self.schema}.{self.name}'.encode()).hexdigest()[:16]}_"


def table(url: Secret, given: str, keys: Sequence[str] | None = None) -> TargetTable:
    """The table of that name: orders, or sales.orders."""
    parts = given.split(".")
    if len(parts) > 2 or not all(parts):
        raise InvalidArgument(f'"{given}" is not the name of a table', hint="write schema.table")
    return TargetTable(url, parts[0] if len(parts) == 2 else "public", parts[-1], tuple(keys or ()))


def prepare(target: TargetTable, columns: t.StructType) -> None:
    """Makes the table if it is not there; an error when the rows do not fit into it."""
    kinds = {field.name: kind(field) for field in columns}
    missing = [name for name in target.keys if name not in kinds]
    if missing:
        raise InvalidArgument(f"the result has no column {missing[0]}", hint=f"it has {', '.join(kinds)}")
    parts = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(k)) for n, k in kinds.items()]
    if target.keys:
        parts.append(sql.SQL("primary key ({})").format(_names(target.keys)))
    with psycopg.connect(plain(target.url)) as connection:
        if not _columns(connection, target):
            connection.execute(
                sql.SQL("create table if not exists {} ({})").format(target.identifier, sql.SQL(", ").join(parts))
            )
        there = _columns(connection, target)
    unknown = [name for name in kinds if name not in there]
    if unknown:
        raise InvalidArgument(
            f"the table {target.schema}.{target.name} has no column {unknown[0]}", hint=f"it has {', '.join(there)}"
        )


def check_schema(target: TargetTable) -> None:
    """An error when the schema that the table is to be in is not there."""
    with psycopg.connect(plain(target.url)) as connection:
        name = sql.Identifier(target.schema).as_string(connection)
        if connection.execute("select to_regnamespace(%s) is null", (name,)).fetchone() == (True,):
            raise InvalidArgument(f'there is no schema "{target.schema}"', hint=f"create schema {name}")


def kind(field: t.StructField) -> str:
    """The type of a column in PostgreSQL."""
    if isinstance(field.dataType, t.DecimalType):
        return f"numeric({field.dataType.precision}, {field.dataType.scale})"
    found = TYPES.get(type(field.dataType))
    if found is None:
        raise InvalidArgument(
            f"the column {field.name} is {field.dataType.simpleString()}, which a table cannot hold",
            hint=f"write it as JSON: to_json({field.name}) as {field.name}",
        )
    return found


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task has staged."""

    writer: str
    name: str
    count: int


class TableWriter(DataSourceStreamArrowWriter):
    """Tasks stage, the driver loads."""

    def __init__(self, target: TargetTable, columns: t.StructType) -> None:
        self._target = replace(target, url=plain(target.url))
        self._kinds = {field.name: kind(field) for field in columns}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = this_batch()
        name = f"{self._target.staged(query)}{batch}_{uuid.uuid4().hex[:8]}"
        first = next(iterator, None)
        if first is None:
            return StagedRows(query, "", 0)
        kinds = {n: "text" if k.startswith("numeric") else k for n, k in self._kinds.items()}
        columns = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(k)) for n, k in kinds.items()]
        # a table does not keep the order in which rows are written
        columns.append(sql.SQL("{} bigint generated always as identity (cache 1000)").format(sql.Identifier(ROW)))
        with psycopg.connect(self._target.url) as connection:
            made = sql.SQL("create unlogged table {} ({})")
            connection.execute(made.format(sql.Identifier(self._target.schema, name), sql.SQL(", ").join(columns)))

        schema = pa.schema([f.with_type(_staged_as(f.type)) for f in first.schema])
        staged = (batch.cast(schema) for batch in itertools.chain([first], iterator))
        reader = pa.RecordBatchReader.from_batches(schema, staged)
        with rows(self._target.url) as cursor:
            count = cursor.adbc_ingest(name, reader, mode="append", db_schema_name=self._target.schema)
        return StagedRows(query, name, count)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = [m for m in messages if isinstance(m, StagedRows) and m.count]
        if not staged:
            return
        target = self._target
        point("staged", target.name)
        with psycopg.connect(target.url) as connection:
            call = "select headgate.load_once(%s, %s, %s)"
            row = connection.execute(call, (staged[0].writer, f"{target.schema}.{target.name}", batchId)).fetchone()
            if row is not None and row[0]:
                self._load(connection, staged)
        point("loaded", target.name)
        with psycopg.connect(target.url, autocommit=True) as connection:
            _drop_staged(connection, target, staged[0].writer, batchId)
        point("cleaned", target.name)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Undoes nothing: it is also called after a commit that did take effect. A later batch drops what is left."""

    def _load(self, connection: psycopg.Connection, staged: Sequence[StagedRows]) -> None:
        target, names = self._target, list(self._kinds)
        there = _columns(connection, target)
        for s in staged:
            found = connection.execute(sql.SQL("select count(*) from {}").format(self._staging(s))).fetchone()
            if found is None or found[0] != s.count:  # unlogged: a crash of the database empties it
                raise Error("what was staged is gone", hint="run it again: the batch is repeated")
        # of rows with the same key the last one counts: a key's rows are in one task, in order
        part = sql.SQL("select *, {n} as headgate_task from {staging}")
        parts = [part.format(n=sql.Literal(n), staging=self._staging(s)) for n, s in enumerate(staged)]
        query = sql.SQL(
            "insert into {target} ({names}) select {distinct} {values} from ({parts}) staged {order} {conflict}"
        )
        keys, written = _names(target.keys), sql.SQL("headgate_task, headgate_row")
        last = sql.SQL("{}, headgate_task desc, headgate_row desc").format(keys)
        values = [sql.SQL("{}::{}").format(sql.Identifier(n), sql.SQL(there[n])) for n in names]
        connection.execute(
            query.format(
                target=target.identifier, names=_names(names), values=sql.SQL(", ").join(values),
                parts=sql.SQL(" union all ").join(parts),
                distinct=sql.SQL("distinct on ({})").format(keys) if target.keys else sql.SQL(""),
                order=sql.SQL("order by {}").format(last if target.keys else written),
                conflict=_replace(names, target.keys),
            )
        )  # fmt: skip

    def _staging(self, staged: StagedRows) -> sql.Identifier:
        return sql.Identifier(self._target.schema, staged.name)


def table_format(target: TargetTable) -> type[DataSource]:
    """A format that writes to this table."""

    class TableDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "headgate_table"

        def streamWriter(self, schema: t.StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return TableWriter(target, schema)

    return TableDataSource


def _staged_as(kind: pa.DataType) -> pa.DataType:
    """Decimals travel as text: ADBC's drivers up to 1.9 write other numbers than they are given (docs/adr/0015)."""
    return pa.string() if pa.types.is_decimal(kind) else kind


def _columns(connection: psycopg.Connection, target: TargetTable) -> dict[str, str]:
    """The columns of a table and their types; none when there is no such table."""
    query = """select attname, format_type(atttypid, atttypmod) from pg_attribute
                where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum"""
    return dict(connection.execute(query, (target.identifier.as_string(connection),)).fetchall())


def _replace(names: Sequence[str], keys: Sequence[str]) -> sql.Composable:
    if not keys:
        return sql.SQL("")
    others = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(n)) for n in names if n not in keys]
    action = sql.SQL("update set {}").format(sql.SQL(", ").join(others)) if others else sql.SQL("nothing")
    return sql.SQL("on conflict ({}) do {}").format(_names(keys), action)


def _drop_staged(connection: psycopg.Connection, target: TargetTable, query: str, batch: int) -> None:
    """Removes what a query has staged for this batch and those before."""
    begin = target.staged(query)
    found = connection.execute(
        "select relname from pg_class "
        "where relnamespace = to_regnamespace(%s) and relkind = 'r' and starts_with(relname, %s)",
        (sql.Identifier(target.schema).as_string(connection), begin),
    )
    for (name,) in found.fetchall():
        if int(name.removeprefix(begin).partition("_")[0]) <= batch:
            connection.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(target.schema, name)))


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
