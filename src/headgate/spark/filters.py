"""Filters that Spark pushes down to PostgreSQL: a batch read then brings fewer rows."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal

from psycopg import sql
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from .messages import MESSAGE
from .several import SeveralReader
from .source import BatchReader

COMPARISONS = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
EXACT = ("seq", "lane", "tick", "created_at")  # compared alike by both; text has an order of its own in PostgreSQL


class _Filtering:
    """A batch read with filters. It exists apart: Spark refuses a reader that takes filters unless they are enabled."""

    where: Sequence[str] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes the filters it understands; the others are left to Spark."""
        taken = []
        for given in filters:
            condition = _condition(given)
            if condition is None:
                yield given
            else:
                taken.append(condition)
        self.where = taken


class FilteringReader(_Filtering, BatchReader):
    """Of one stream."""


class FilteringSeveralReader(_Filtering, SeveralReader):
    """Of several streams."""


def _condition(given: Filter) -> str | None:
    attribute = getattr(given, "attribute", None)
    if attribute is None or len(attribute) != 1 or attribute[0] not in MESSAGE.names or attribute[0] == "headers":
        return None
    name = attribute[0]
    column = sql.Identifier("m", name)
    if isinstance(given, (IsNull, IsNotNull)):
        built = sql.SQL("{} is null" if isinstance(given, IsNull) else "{} is not null").format(column)
    elif isinstance(given, In):
        built = sql.SQL("{} in ({})").format(column, sql.SQL(", ").join(map(sql.Literal, given.value)))
        if not given.value or not all(map(_plain, given.value)):
            return None
    elif isinstance(given, StringStartsWith):
        built = sql.SQL("starts_with({}, {})").format(column, sql.Literal(given.value))
    elif type(given) in COMPARISONS and _plain(given.value) and (name in EXACT or isinstance(given, EqualTo)):  # type: ignore[attr-defined]
        built = sql.SQL("{} " + COMPARISONS[type(given)] + " {}").format(column, sql.Literal(given.value))  # type: ignore[attr-defined]
    else:
        return None
    return built.as_string(None)


def _plain(value: object) -> bool:
    return isinstance(value, (str, int, Decimal, datetime.datetime)) and not isinstance(value, bool)
