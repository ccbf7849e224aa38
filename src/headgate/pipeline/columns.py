"""Typed columns of an archive: fields of the JSON in `data`, beside the text itself.

The types are declared, or found in the data. A column that was found grows with what comes: long to double, and
anything to string; a field that was not there before is a new column. A value that does not fit a declared type is
null, and so is everything of data that is no JSON object. Nothing is lost by it: `data` is always kept, and a column
that has to change its type is made anew from it.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

KINDS: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(),
}  # fmt: skip
MOST = 500  # columns that are found: names that are data (an object by customer) would make a column each
RESERVED = frozenset(("seq", "key", "data", "headers", "channel", "lane", "created_at", "tick", "date", "hour"))
LONG = range(-(2**63), 2**63)
# the types of values that a column takes as they are
AS_IT_IS: Mapping[pa.DataType, frozenset[type]] = {
    pa.bool_(): frozenset((bool, type(None))),
    pa.int64(): frozenset((int, type(None))),
    pa.float64(): frozenset((float, type(None))),
    pa.string(): frozenset((str, type(None))),
}

Found = dict[str, str]


def column_name(field_name: str) -> str:
    """The column of a field: what is no letter, digit or _ becomes _, and names that messages have begin with data_."""
    name = re.sub(r"\W", "_", field_name) or "_"
    return f"data_{name}" if name.lower() in RESERVED else name


def wider(one: str | None, other: str | None) -> str | None:
    """The kind that holds values of both."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    return "double" if {one, other} == {"long", "double"} else "string"


@dataclass(frozen=True)
class Shape:
    """The typed columns of an archive."""

    declared: Mapping[str, pa.DataType] = field(default_factory=dict)
    """By the name of the column."""
    found: Mapping[str, str] = field(default_factory=dict)
    """Column and kind of those that were found in the data."""
    infer: bool = False

    @property
    def fields(self) -> list[pa.Field]:
        """The columns, in their order."""
        kinds = {**self.declared, **{name: KINDS[kind] for name, kind in self.found.items()}}
        return [pa.field(name, kind) for name, kind in kinds.items()]

    def known(self, columns: Iterable[pa.Field]) -> Shape:
        """The shape with what the table has already. Columns that were declared once keep their type."""
        if not self.infer:
            return self
        names = {kind: name for name, kind in KINDS.items()}
        others = [c for c in columns if c.name.lower() not in RESERVED and c.name not in self.declared]
        return replace(
            self,
            declared={**self.declared, **{c.name: c.type for c in others if c.type not in names}},
            found={c.name: names[c.type] for c in others if c.type in names},
        )

    def grown(self, news: Iterable[Found]) -> Shape:
        """The shape that also holds what tasks found."""
        found: dict[str, str] = dict(self.found)
        spelled = {name.lower(): name for name in found}
        for news_of_one in news:
            for name, kind in sorted(news_of_one.items()):
                name = spelled.setdefault(name.lower(), name)
                if name in found or len(found) < MOST:
                    found[name] = wider(found.get(name), kind) or kind
        return replace(self, found=found)

    def filled(self, batches: Iterator[pa.RecordBatch], news: Found) -> Iterator[pa.RecordBatch]:
        """Messages with their typed columns. What this shape cannot hold is put into `news`; from there on it only
        looks for more of it, because the rows are to be written again."""
        columns = self.fields
        if not columns and not self.infer:  # JSON is not read for nothing
            yield from batches
            return
        for batch in batches:
            rows = [_decoded(text) for text in batch.column("data").to_pylist()]
            named = _fields(rows)
            if self.infer:
                self._look(rows, named, news)
            if news:
                continue
            for column in columns:
                values = _values(rows, named.get(column.name.lower(), ()))
                batch = batch.append_column(column, _array(values, column.type))
            yield batch

    def _look(self, rows: Sequence[dict[str, Any]], named: Mapping[str, Sequence[str]], news: Found) -> None:
        held = {name.lower(): kind for name, kind in self.found.items()}
        fixed = {name.lower() for name in self.declared}
        for lower, names in named.items():
            if lower in fixed or (lower not in held and len(held) >= MOST):
                continue
            kind = wider(held.get(lower), _kind(_values(rows, names)))
            if kind is not None and kind != held.get(lower):
                name = column_name(min(names))
                news[name] = wider(news.get(name), kind) or kind


def fit(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON as a column takes it; None when it does not fit."""
    if value is None:
        return None
    try:
        return _fitted(value, kind)
    except (ValueError, ArithmeticError, pa.ArrowInvalid):
        return None


def _fitted(value: Any, kind: pa.DataType) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    types = pa.types
    if types.is_string(kind):
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if types.is_integer(kind):
        return pa.scalar(int(value), kind).as_py() if number and int(value) == value else None
    if types.is_floating(kind):
        return float(value) if number else None
    if types.is_decimal(kind):
        return pa.scalar(decimal.Decimal(str(value)), kind).as_py() if number else None
    if types.is_date(kind):
        return datetime.date.fromisoformat(value) if isinstance(value, str) else None
    if types.is_timestamp(kind):
        found = datetime.datetime.fromisoformat(value) if isinstance(value, str) else None
        return found.replace(tzinfo=datetime.UTC) if found is not None and found.tzinfo is None else found
    if types.is_map(kind):
        return [(k, fit(v, kind.item_type)) for k, v in value.items()] if isinstance(value, dict) else None
    if types.is_list(kind):
        return [fit(v, kind.value_type) for v in value] if isinstance(value, list) else None
    assert types.is_struct(kind)
    return {f.name: fit(value.get(f.name), f.type) for f in kind} if isinstance(value, dict) else None


def _decoded(text: str | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _fields(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The fields that there are, by the column, in lower case, that they belong to: tables do not tell cases apart."""
    seen: dict[str, None] = {}
    for row in rows:
        seen.update(dict.fromkeys(row))
    named: dict[str, list[str]] = {}
    for name in sorted(seen):
        named.setdefault(column_name(name).lower(), []).append(name)
    return named


def _values(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Any]:
    """The values of a column: of the first of its fields that a row has."""
    if not names:
        return [None] * len(rows)
    values = [row.get(names[0]) for row in rows]
    for name in names[1:]:
        values = [row.get(name) if v is None else v for v, row in zip(values, rows, strict=True)]
    return values


def _kind(values: Sequence[Any]) -> str | None:
    """The narrowest kind that holds all values; objects and arrays are kept as their JSON."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return None
    if kinds == {bool}:
        return "boolean"
    if kinds <= {int, float}:
        # a number that no long holds is kept digit by digit
        if any(isinstance(v, int) and v not in LONG for v in values):
            return "string"
        return "long" if kinds == {int} else "double"
    return "string"


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if set(map(type, values)) <= AS_IT_IS.get(kind, frozenset()):
        try:
            return pa.array(values, kind)
        except (OverflowError, pa.ArrowInvalid):
            pass  # a number that is too large
    return pa.array([fit(v, kind) for v in values], kind)
