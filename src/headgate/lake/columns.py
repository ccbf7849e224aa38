"""Columns of a Spark query as a Delta table has them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as t

from ..errors import InvalidArgument

PLAIN: dict[type[t.DataType], pa.DataType] = {
    t.BooleanType: pa.bool_(), t.ByteType: pa.int8(), t.ShortType: pa.int16(), t.IntegerType: pa.int32(),
    t.LongType: pa.int64(), t.FloatType: pa.float32(), t.DoubleType: pa.float64(), t.StringType: pa.string(),
    t.CharType: pa.string(), t.VarcharType: pa.string(), t.BinaryType: pa.binary(), t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", tz="UTC"), t.TimestampNTZType: pa.timestamp("us"),
}  # fmt: skip
FORBIDDEN = frozenset(" ,;{}()\n\t=")  # in names of columns, to Delta


def stored(schema: t.StructType) -> pa.Schema:
    """The columns as the table has them, all of which may be null; an error for what a table cannot hold."""
    return pa.schema(_fields(schema, ""))


def _fields(schema: t.StructType, inside: str) -> list[pa.Field]:
    known: set[str] = set()
    for field in schema:
        path = inside + field.name
        if field.name.lower() in known:
            raise InvalidArgument(f"there are two columns {path}", hint="name one of them anew: … as other")
        if not field.name or FORBIDDEN & set(field.name):
            raise InvalidArgument(
                f'a table cannot have a column "{path}"', hint="name it without spaces and signs: … as total"
            )
        known.add(field.name.lower())
    return [pa.field(field.name, _stored(field.dataType, inside + field.name)) for field in schema]


def _stored(kind: t.DataType, path: str) -> pa.DataType:
    match kind:
        case t.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case t.ArrayType():
            return pa.list_(_stored(kind.elementType, path))
        case t.MapType():
            return pa.map_(_stored(kind.keyType, path), _stored(kind.valueType, path))
        case t.StructType():
            return pa.struct(_fields(kind, path + "."))
    found = PLAIN.get(type(kind))
    if found is None:
        raise InvalidArgument(
            f"the column {path} is {kind.simpleString()}, which a table of the lake cannot hold", hint=_instead(kind)
        )
    return found


def _instead(kind: t.DataType) -> str:
    match kind:
        case t.DayTimeIntervalType():
            return "write its seconds, extract(day from x) and so on, or cast(x as string)"
        case t.NullType():
            return "say of which type it is: cast(null as string)"
        case t.VariantType():
            return "write it as JSON: to_json(x)"
    return "write it as text: cast(x as string)"
