"""Mistakes of users: an error or a warning says what to do; no raw error of a driver, no silent wrong result."""

from __future__ import annotations

import random
import string
import warnings
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import headgate
from headgate.database.drivers import AutocommitWarning
from headgate.errors import EmbeddedServerError, from_database
from headgate.postgres.embedded import _explained
from support.calls import Db


def alchemy(url: str, driver: str) -> sqlalchemy.URL:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    where = {"host": str(parts["host"]), "port": "5432"}
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", username=str(parts["user"]), database=str(parts["dbname"]), query=where
    )


async def connect_asyncpg(url: str) -> Any:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return await asyncpg.connect(host=parts["host"], user=parts["user"], database=parts["dbname"])


class TestAutocommit:
    """There is no transaction to join: the message stays, whatever becomes of the caller's work."""

    def test_psycopg(self, orders: headgate.Stream, database_url: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as conn:
            with pytest.warns(AutocommitWarning, match="commits by itself") as told:
                orders.send("x", conn=conn)
            assert told[0].filename == __file__
            with warnings.catch_warnings(action="error"), conn.transaction():
                orders.send("x", conn=conn)
        with warnings.catch_warnings(action="error"), psycopg.connect(database_url) as conn:
            orders.send("x", conn=conn)
            [m] = orders.consumer("c", create=True).receive(wait=5)
            m.ack(conn=conn)

    def test_sqlalchemy(self, orders: headgate.Stream, database_url: str) -> None:
        engine = sqlalchemy.create_engine(alchemy(database_url, "psycopg"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            with pytest.warns(AutocommitWarning):
                orders.send("x", conn=conn)
        with warnings.catch_warnings(action="error"), engine.begin() as conn:
            orders.send("x", conn=conn)
        with pytest.raises(headgate.errors.ConnectionFailed, match=r"is closed[\s\S]*hint: pass an open connection"):
            orders.send("x", conn=conn)
        engine.dispose()

    async def test_asyncpg(self, aorders: headgate.AsyncStream, database_url: str) -> None:
        conn = await connect_asyncpg(database_url)
        with pytest.warns(AutocommitWarning):
            await aorders.send("x", conn=conn)
        with warnings.catch_warnings(action="error"):
            async with conn.transaction():
                await aorders.send("x", conn=conn)
        await conn.close()
        with pytest.raises(headgate.errors.ConnectionFailed, match=r"is closed[\s\S]*hint: pass an open connection"):
            await aorders.send("x", conn=conn)

    async def test_async_sqlalchemy(self, aorders: headgate.AsyncStream, database_url: str) -> None:
        engine = create_async_engine(alchemy(database_url, "psycopg"), isolation_level="AUTOCOMMIT")
        async with engine.connect() as conn:
            with pytest.warns(AutocommitWarning):
                await aorders.send("x", conn=conn)
        await engine.dispose()


def test_a_closed_connection(orders: headgate.Stream, database_url: str) -> None:
    conn = psycopg.connect(database_url)
    conn.close()
    with pytest.raises(headgate.errors.ConnectionFailed, match=r"is closed[\s\S]*hint: pass an open connection"):
        orders.send("x", conn=conn)


@pytest.mark.parametrize("length", [3_000, 9_000, 200_000])
def test_a_long_id(orders: headgate.Stream, length: int) -> None:
    """Random, so that it cannot be packed into an index."""
    draw = random.Random(12)
    long = "".join(draw.choices(string.ascii_letters + string.digits, k=length))
    with pytest.raises(
        headgate.errors.InvalidArgument, match=r"too long[\s\S]*hint: use shorter keys, channels and ids"
    ):
        orders.send("x", id=long)


def test_how_long_to_wait(orders: headgate.Stream) -> None:
    consumer = orders.consumer("c", create=True)
    assert consumer.receive(wait=timedelta(milliseconds=1)) == []
    with consumer.transaction(wait=timedelta(0)) as (_, messages):
        assert messages == []
    for wrong in ("1", None, float("nan"), True):
        with pytest.raises(headgate.errors.InvalidArgument, match="hint: give seconds, or a timedelta"):
            consumer.receive(wait=wrong)  # type: ignore[arg-type]


def test_a_pooler_that_was_not_told_of(hg: headgate.Headgate, db: Db) -> None:
    """What PgBouncer in transaction mode does to prepared statements: they are another client's connection's."""
    orders = hg.stream("orders", create=True)
    orders.send("x")
    hg.run("do $$ begin execute 'deallocate all'; end $$")  # so that the driver does not notice
    with pytest.raises(headgate.errors.PoolerInTheWay, match=r"hint: connect with pooler=True"):
        orders.send("x")
    taken = psycopg.errors.DuplicatePreparedStatement('prepared statement "_pg3_0" already exists')
    assert isinstance(from_database(taken), headgate.errors.PoolerInTheWay)


def test_a_full_disk() -> None:
    full = psycopg.errors.DiskFull('could not extend file "base/5/1": No space left on device')
    ours = from_database(full)
    assert isinstance(ours, headgate.errors.DatabaseUnavailable)
    assert "free some space" in str(ours)
    with pytest.raises(EmbeddedServerError, match=r"no space left[\s\S]*hint: free some"), _explained("there"):  # type: ignore[arg-type]
        raise OSError(28, "No space left on device")
    with pytest.raises(EmbeddedServerError, match="hint: the disk is full"), _explained("there"):  # type: ignore[arg-type]
        raise EmbeddedServerError("initdb failed: No space left on device", hint="see the log")


@pytest.mark.parametrize("wrong", [5, None, "1.1.1", object()])
def test_what_is_no_list_of_messages(orders: headgate.Stream, wrong: Any) -> None:
    consumer = orders.consumer("c", create=True)
    for call in (
        consumer.ack,
        consumer.nack,
        lambda ids: consumer.extend(ids, 1),
        lambda ids: consumer.receive(acks=ids),
    ):
        with pytest.raises(headgate.errors.InvalidArgument, match="hint: pass a list of messages or ack_ids"):
            call(wrong)


@pytest.mark.parametrize("wrong", [5, None, b"orders"], ids=str)
def test_names_that_are_no_text(hg: headgate.Headgate, orders: headgate.Stream, wrong: Any) -> None:
    with pytest.raises(headgate.errors.InvalidName, match=r"is not a name for a stream\nhint: pass the name as a str"):
        hg.stream(wrong)
    with pytest.raises(headgate.errors.InvalidName, match="is not a name for a consumer"):
        orders.consumer(wrong, create=True)


def test_a_worker_that_is_no_text(orders: headgate.Stream) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match="the worker is a int, not a str"):
        orders.consumer("c", create=True).receive(worker=5)  # type: ignore[arg-type]


def test_one_seq_that_is_no_list(orders: headgate.Stream) -> None:
    c = orders.consumer("c", create=True)
    for call in (c.discard, c.retry_now):
        with pytest.raises(headgate.errors.InvalidArgument, match=r"seqs 5 are not a list\nhint: pass a list of int"):
            call(5)  # type: ignore[operator]


def test_one_state_to_peek_at(orders: headgate.Stream) -> None:
    c = orders.consumer("c", create=True)
    orders.send("x")
    assert [m.data for m in c.peek(states="available")] == ["x"]


def test_a_backoff_that_is_no_number(orders: headgate.Stream) -> None:
    with pytest.raises(headgate.errors.InvalidArgument, match="backoff nan is not possible"):
        orders.consumer("c", create=True, backoff=float("nan"))
