"""`conn=`: sends, acks and nacks inside the caller's own transaction, with the real libraries."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import headgate
from headgate import Outgoing
from headgate.postgres.cluster import Cluster
from support.databases import new_database

# What a stream takes: a value of every column, and text that a library might take for something else.
BATCH = [
    Outgoing({"n": 1}, key="a"),
    Outgoing('%s :p1 $1 {"a", NULL} \\ ü', key='quo"te', headers={"h": [1, None, "%s"]}, id="%(one)s", delay=0),
    Outgoing(b"\x00"),
]


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    with new_database(cluster) as url:
        yield url


@pytest.fixture
def hg(url: str) -> Iterator[headgate.Headgate]:
    with headgate.connect(url) as hg:
        yield hg


@pytest.fixture
def consumer(hg: headgate.Headgate) -> Iterator[headgate.Consumer]:
    """Of a stream with three messages that it has not seen yet."""
    stream = hg.stream("orders", create=True, lanes=1)
    consumer = stream.consumer("billing", create=True)
    yield consumer
    stream.drop()


@pytest.fixture
async def async_consumer(url: str, consumer: headgate.Consumer) -> AsyncIterator[headgate.AsyncConsumer]:
    async with await headgate.connect_async(url) as hg:
        yield await (await hg.stream("orders")).consumer("billing")


class RolledBack(Exception):
    """Raised to have a transaction rolled back."""


# --- the libraries: each a transaction that commits when its block ends, and rolls back when it raises

Transaction = Callable[[str], AbstractContextManager[Any]]
AsyncTransaction = Callable[[str], AbstractAsyncContextManager[Any]]


@contextmanager
def in_psycopg(url: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, **options) as conn:
        yield conn


@contextmanager
def in_psycopg_block(url: str) -> Iterator[psycopg.Connection[Any]]:
    """In autocommit, with a transaction block."""
    with psycopg.connect(url, autocommit=True) as conn, conn.transaction():
        yield conn


@contextmanager
def in_client_cursors(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as conn:
        yield conn


@contextmanager
def in_pipeline(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as conn, conn.pipeline():
        yield conn


@contextmanager
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    try:
        yield made
    finally:
        made.dispose()


@contextmanager
def in_sqlalchemy(url: str) -> Iterator[sqlalchemy.Connection]:
    with engine(url) as e, e.begin() as conn:
        yield conn


@contextmanager
def in_orm(url: str) -> Iterator[Session]:
    with engine(url) as e, Session(e) as session, session.begin():
        yield session


@contextmanager
def in_scoped_session(url: str) -> Iterator[scoped_session[Session]]:
    with engine(url) as e:
        session = scoped_session(sessionmaker(e))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()


@contextmanager
def in_django(url: str) -> Iterator[Any]:
    parts = conninfo_to_dict(url)
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, USE_TZ=True)
        django.setup()
    from django.db import connection, transaction

    connection.settings_dict.update(NAME=parts["dbname"], USER=parts["user"], HOST=parts["host"], PORT=parts["port"])
    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


SYNC: dict[str, Transaction] = {
    "psycopg": in_psycopg,
    "psycopg, block": in_psycopg_block,
    "psycopg, dict rows": lambda url: in_psycopg(url, row_factory=dict_row),
    "psycopg, named rows": lambda url: in_psycopg(url, row_factory=namedtuple_row),
    "psycopg, client cursors": in_client_cursors,
    "psycopg, pipeline": in_pipeline,
    "SQLAlchemy": in_sqlalchemy,
    "SQLAlchemy ORM": in_orm,
    "SQLAlchemy scoped session": in_scoped_session,
    "Django": in_django,
}


@asynccontextmanager
async def in_async_psycopg(url: str, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, **options) as conn:
        yield conn


def asyncpg_options(url: str) -> dict[str, Any]:
    parts = conninfo_to_dict(url)
    return {"host": parts["host"], "port": int(str(parts["port"])), "user": parts["user"], "database": parts["dbname"]}


@asynccontextmanager
async def in_asyncpg(url: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(**asyncpg_options(url))
    try:
        async with conn.transaction():
            yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def in_asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(**asyncpg_options(url), min_size=1, max_size=1) as pool:
        async with pool.acquire() as conn, conn.transaction():
            yield conn


@asynccontextmanager
async def async_engine(url: str, driver: str) -> AsyncIterator[Any]:
    async def connect() -> Any:
        if driver == "asyncpg":
            return await asyncpg.connect(**asyncpg_options(url))
        return await psycopg.AsyncConnection.connect(url)

    made = create_async_engine(f"postgresql+{driver}://", async_creator=connect)
    try:
        yield made
    finally:
        await made.dispose()


def in_async_sqlalchemy(driver: str) -> AsyncTransaction:
    @asynccontextmanager
    async def transaction(url: str) -> AsyncIterator[Any]:
        async with async_engine(url, driver) as e, e.begin() as conn:
            yield conn

    return transaction


def in_async_orm(driver: str) -> AsyncTransaction:
    @asynccontextmanager
    async def transaction(url: str) -> AsyncIterator[Any]:
        async with async_engine(url, driver) as e, AsyncSession(e) as session, session.begin():
            yield session

    return transaction


@asynccontextmanager
async def in_async_scoped_session(url: str) -> AsyncIterator[Any]:
    async with async_engine(url, "asyncpg") as e:
        session = async_scoped_session(async_sessionmaker(e), scopefunc=lambda: None)
        try:
            async with session.begin():
                yield session
        finally:
            await session.remove()


ASYNC: dict[str, AsyncTransaction] = {
    "psycopg": in_async_psycopg,
    "psycopg, dict rows": lambda url: in_async_psycopg(url, row_factory=dict_row),
    "asyncpg": in_asyncpg,
    "asyncpg pool": in_asyncpg_pool,
    "SQLAlchemy asyncpg": in_async_sqlalchemy("asyncpg"),
    "SQLAlchemy psycopg": in_async_sqlalchemy("psycopg"),
    "SQLAlchemy ORM asyncpg": in_async_orm("asyncpg"),
    "SQLAlchemy ORM psycopg": in_async_orm("psycopg"),
    "SQLAlchemy scoped session": in_async_scoped_session,
}


# --- the same for each of them


def messages(consumer: headgate.Consumer) -> list[headgate.Message]:
    """Three messages in flight, of one delivery."""
    consumer.hg.stream("orders").send_batch(["x", "y", "z"])
    found = consumer.receive(10, wait=5)
    assert len(found) == 3
    return found


@pytest.mark.parametrize("library", SYNC)
def test_sync(url: str, consumer: headgate.Consumer, library: str) -> None:
    stream, transaction = consumer.hg.stream("orders"), SYNC[library]

    with pytest.raises(RolledBack), transaction(url) as conn:
        assert len(stream.send_batch(BATCH, conn=conn)) == 3
        raise RolledBack
    assert stream.info().messages == 0
    with transaction(url) as conn:
        seqs = stream.send_batch(BATCH, conn=conn)
        one = stream.send({"one": 1}, key="k", conn=conn)
        assert stream.send("again", id="%(one)s", conn=conn) == seqs[1]
        assert stream.info().messages == 0, "nobody else sees them yet"
    found = consumer.receive(10, wait=5)
    assert [(m.seq, m.data, m.key) for m in found] == [
        *((s, b.data, b.key) for s, b in zip(seqs, BATCH, strict=True)),
        (one, {"one": 1}, "k"),
    ]
    assert found[1].headers == BATCH[1].headers
    consumer.ack(found)

    a, b, c = messages(consumer)
    with pytest.raises(RolledBack), transaction(url) as conn:
        assert a.ack(conn=conn)
        assert consumer.nack([b, c], delay=60, error="no", conn=conn) == headgate.types.Settled(2, 0)
        raise RolledBack
    assert consumer.info().in_flight == 3
    with transaction(url) as conn:
        assert consumer.ack([a], conn=conn) == headgate.types.Settled(1, 0)
        assert b.nack(delay=60, error="%s no", conn=conn)
        assert c.nack(conn=conn)
        assert not a.ack(conn=conn)
    assert [(p.data, p.state, p.last_error) for p in consumer.peek(10, after=one)] == [
        ("x", "done", None),
        ("y", "parked", "%s no"),
        ("z", "parked", None),
    ]


@pytest.mark.parametrize("library", SYNC)
def test_sync_errors(url: str, consumer: headgate.Consumer, library: str) -> None:
    """They are the same classes, with the engine's hint, and the transaction they happened in can be rolled back."""
    stream, transaction = consumer.hg.stream("orders"), SYNC[library]
    gone = headgate.Stream(consumer.hg, "gone")
    for expected, call in (
        (headgate.errors.StreamNotFound, lambda conn: gone.send("x", conn=conn)),
        (headgate.errors.InvalidAckId, lambda conn: consumer.ack(["nonsense"], conn=conn)),
        (headgate.errors.InvalidArgument, lambda conn: consumer.nack(["0.1.1"], delay=-1, conn=conn)),
        (headgate.errors.MessageTooLarge, lambda conn: stream.send("x" * 20_000_000, conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("a\x00b", conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("\ud800", conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("x", headers={"a": "\x00"}, conn=conn)),
    ):
        with pytest.raises(expected) as caught, transaction(url) as conn:
            call(conn)
        assert caught.value.hint, expected
        assert "<class" not in caught.value.message
    with transaction(url) as conn:
        stream.send("fine", conn=conn)


@pytest.mark.parametrize("library", ASYNC)
async def test_async(
    url: str, consumer: headgate.Consumer, async_consumer: headgate.AsyncConsumer, library: str
) -> None:
    stream, transaction = await async_consumer.hg.stream("orders"), ASYNC[library]

    with pytest.raises(RolledBack):
        async with transaction(url) as conn:
            assert len(await stream.send_batch(BATCH, conn=conn)) == 3
            raise RolledBack
    assert (await stream.info()).messages == 0
    async with transaction(url) as conn:
        seqs = await stream.send_batch(BATCH, conn=conn)
        one = await stream.send({"one": 1}, key="k", conn=conn)
        assert await stream.send("again", id="%(one)s", conn=conn) == seqs[1]
        assert (await stream.info()).messages == 0, "nobody else sees them yet"
    found = await async_consumer.receive(10, wait=5)
    assert [(m.seq, m.data, m.key) for m in found] == [
        *((s, b.data, b.key) for s, b in zip(seqs, BATCH, strict=True)),
        (one, {"one": 1}, "k"),
    ]
    assert found[1].headers == BATCH[1].headers
    await async_consumer.ack(found)

    ids = [m.ack_id for m in messages(consumer)]
    with pytest.raises(RolledBack):
        async with transaction(url) as conn:
            assert await async_consumer.ack(ids[:1], conn=conn) == headgate.types.Settled(1, 0)
            assert await async_consumer.nack(ids[1:], delay=60, error="no", conn=conn) == headgate.types.Settled(2, 0)
            raise RolledBack
    assert consumer.info().in_flight == 3
    async with transaction(url) as conn:
        assert await async_consumer.ack(ids[:1], conn=conn) == headgate.types.Settled(1, 0)
        assert await async_consumer.nack(ids[1:2], delay=60, error="%s no", conn=conn) == headgate.types.Settled(1, 0)
        assert await async_consumer.nack(ids[2:], conn=conn) == headgate.types.Settled(1, 0)
        assert await async_consumer.ack(ids[:1], conn=conn) == headgate.types.Settled(0, 1)
    assert [(p.data, p.state, p.last_error) for p in consumer.peek(10, after=one)] == [
        ("x", "done", None),
        ("y", "parked", "%s no"),
        ("z", "parked", None),
    ]


@pytest.mark.parametrize("library", ASYNC)
async def test_async_errors(url: str, async_consumer: headgate.AsyncConsumer, library: str) -> None:
    stream, transaction = await async_consumer.hg.stream("orders"), ASYNC[library]
    gone = headgate.AsyncStream(async_consumer.hg, "gone")
    for expected, call in (
        (headgate.errors.StreamNotFound, lambda conn: gone.send("x", conn=conn)),
        (headgate.errors.InvalidAckId, lambda conn: async_consumer.ack(["nonsense"], conn=conn)),
        (headgate.errors.InvalidArgument, lambda conn: async_consumer.nack(["0.1.1"], delay=-1, conn=conn)),
        (headgate.errors.MessageTooLarge, lambda conn: stream.send("x" * 20_000_000, conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("a\x00b", conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("\ud800", conn=conn)),
        (headgate.errors.InvalidText, lambda conn: stream.send("x", headers={"a": "\x00"}, conn=conn)),
    ):
        with pytest.raises(expected) as caught:
            async with transaction(url) as conn:
                await call(conn)
        assert caught.value.hint, expected
        assert "<class" not in caught.value.message
    async with transaction(url) as conn:
        await stream.send("fine", conn=conn)


def test_not_a_connection(url: str, consumer: headgate.Consumer) -> None:
    """What cannot be joined is refused before anything runs: among it, connections of the other kind."""
    stream = consumer.hg.stream("orders")
    with psycopg.connect(url) as conn, engine(url) as e, sqlite3.connect(":memory:") as lite:
        for wrong in (object(), "postgresql://", conn.cursor(), e, lite, consumer.hg):
            with pytest.raises(
                headgate.errors.InvalidArgument, match=r"cannot join the transaction of a [\s\S]*hint: pass a psycopg"
            ):
                stream.send("x", conn=wrong)
            with pytest.raises(headgate.errors.InvalidArgument):
                consumer.ack(["0.1.1"], conn=wrong)
    assert stream.info().messages == 0


async def test_a_connection_of_the_other_kind(
    url: str, consumer: headgate.Consumer, async_consumer: headgate.AsyncConsumer
) -> None:
    stream, async_stream = consumer.hg.stream("orders"), await async_consumer.hg.stream("orders")
    with in_psycopg(url) as conn, in_sqlalchemy(url) as sa, in_orm(url) as session:
        for wrong in (conn, sa, session):
            with pytest.raises(headgate.errors.InvalidArgument, match="Async"):
                await async_stream.send("x", conn=wrong)
    async with in_async_psycopg(url) as conn, in_asyncpg(url) as pg, in_async_orm("psycopg")(url) as asession:
        for wrong in (conn, pg, asession):
            with pytest.raises(headgate.errors.InvalidArgument):
                stream.send("x", conn=wrong)
    assert stream.info().messages == 0


def test_one_transaction_for_everything(url: str, consumer: headgate.Consumer) -> None:
    """The outbox without an outbox: a row of the user's and its message, all or nothing."""
    stream = consumer.hg.stream("orders")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("drop table if exists orders; create table orders (id int primary key)")
    for attempt in range(2):
        try:
            with in_orm(url) as session:
                stream.send({"order": 1}, conn=session)
                session.execute(sqlalchemy.text("insert into orders values (1)"))
        except sqlalchemy.exc.IntegrityError:
            assert attempt == 1
    assert [m.data for m in consumer.receive(10, wait=5)] == [{"order": 1}]
    assert consumer.receive(10, wait=0.05) == []
