"""Schemas in pipelines: what is wrong for sure is said before Spark starts, and nothing that is right is refused."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidArgument
from headgate.pipeline.ddl import check_schema_text


@pytest.mark.parametrize(
    "ddl",
    [
        "id long, total double",
        "id LONG NOT NULL COMMENT 'its name, and > all', total decimal(12, 2)",
        "`a b` string, c: int",
        "a struct<town string, street: struct<no int>>, b array<map<string, array<long>>>",
        "a struct<>, b timestamp_ntz",
        "a interval day to second, b varchar(10)",
        "array<long>", "map<string, int>", "long", '{"type": "struct", "fields": []}', "",
    ],
)  # fmt: skip
def test_what_spark_may_take(ddl: str) -> None:
    check_schema_text(ddl)


@pytest.mark.parametrize(
    ("ddl", "problem", "hint"),
    [
        ("id lon, total double", "column id has the type lon", "is it long?"),
        ("id long, total", "column total has no type", "id long"),
        ("id long,", "a column is missing", ""),
        ("id", "column id has no type", ""),
        ("a struct<b strin>", "column b has the type strin", "is it string?"),
        ("a array<number>", "array of column a has the type number", ""),
        ("a map<string, numb>", "has the type numb", ""),
        ("a struct<b string", "a > is missing", ""),
    ],
)
def test_what_is_wrong(ddl: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_schema_text(ddl)
    assert problem in caught.value.message
    assert hint in (caught.value.hint or "")
