"""The table of settings: what it says is so in SQL, and what reads it takes all of it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import psycopg
import pytest

import headgate
import settings_reference
from headgate.settings import CONSUMER, STREAM, Setting, Settings, changeable, clearable
from headgate.types import ConsumerInfo, StreamInfo

TABLES = pytest.mark.parametrize(("noun", "table"), [("stream", STREAM), ("consumer", CONSUMER)])


@TABLES
def test_sql_takes_these_settings(noun: str, table: Settings) -> None:
    made = settings_reference.arguments(f"create_{noun}")
    assert set(made) == {*table, "if_not_exists"}
    assert set(settings_reference.arguments(f"alter_{noun}")) == {*changeable(table), "clear"}


def test_defaults_are_those_of_the_engine(hg: headgate.Headgate, db: psycopg.Connection[Any]) -> None:
    """What a stream and a consumer have that are made without any settings."""
    stream = hg.stream("plain", create=True)
    consumer = stream.consumer("plain", create=True)
    for table, info in ((STREAM, stream.info()), (CONSUMER, consumer.info())):
        for name, row in table.items():
            if name != "start":
                assert getattr(info, name) == as_value(row, db), name


def as_value(row: Setting, db: psycopg.Connection[Any]) -> Any:
    """A default as the SDK gives it back."""
    if row.default is None:
        return None
    kind = {"length": "interval", "flag": "boolean", "count": "bigint", "bytes": "bigint"}.get(row.kind, "text")
    found = db.execute(f"select %s::{kind}", [row.default]).fetchone()
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("table", "info"), [(STREAM, StreamInfo), (CONSUMER, ConsumerInfo)])
def test_settings_are_shown(table: Settings, info: type) -> None:
    assert set(table) - {f.name for f in fields(info)} <= {"start"}  # which is where it begins, no more


@pytest.mark.parametrize("name", STREAM)
def test_what_can_be_cleared_of_a_stream(orders: headgate.Stream, name: str) -> None:
    if name in clearable(STREAM):
        orders.alter(clear=[name])
    else:
        with pytest.raises(headgate.errors.InvalidArgument, match="unknown setting"):
            orders.alter(clear=[name])


@pytest.mark.parametrize("name", CONSUMER)
def test_what_can_be_cleared_of_a_consumer(orders: headgate.Stream, name: str) -> None:
    billing = orders.consumer("billing", create=True)
    if name in clearable(CONSUMER):
        billing.alter(clear=[name])
    else:
        with pytest.raises(headgate.errors.InvalidArgument, match="unknown setting"):
            billing.alter(clear=[name])


def test_a_name_that_is_no_setting(hg: headgate.Headgate, orders: headgate.Stream) -> None:
    with pytest.raises(TypeError, match="no setting 'lane': there are lanes, lane_by"):
        hg.stream("s", create=True, lane=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no setting 'order'"):
        orders.consumer("billing", create=True).alter(order="key")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no setting 'max_delivered'"):
        orders.consumer("billing", create=True, max_delivered=3)  # type: ignore[call-arg]
    assert hg.streams() == ["orders"]


@pytest.mark.parametrize("method", [headgate.Headgate.stream, headgate.Stream.consumer, headgate.Stream.alter])
def test_a_name_that_is_no_setting_is_no_argument(method: object) -> None:
    """No setting is written a second time, in a signature."""
    assert not {*STREAM, *CONSUMER} & set(inspect.signature(method).parameters)  # type: ignore[arg-type]
