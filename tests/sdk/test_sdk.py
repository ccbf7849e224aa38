"""The SDK: connecting, and threads that share a client."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from support.waiting import wait_until


@pytest.fixture
def stream(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True, lanes=4)


@pytest.fixture
def consumer(stream: headgate.Stream) -> headgate.Consumer:
    return stream.consumer("billing", create=True)


def test_making_one_connects_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    headgate.Headgate("postgresql://nobody@127.0.0.1:1/nothing")
    headgate.AsyncHeadgate("postgresql://nobody@127.0.0.1:1/nothing")
    headgate.Headgate()
    headgate.AsyncHeadgate(directory="elsewhere")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == len(threading.enumerate())


def test_url(database_url: str, hg: headgate.Headgate) -> None:
    assert hg.url == database_url


def test_embedded(tmp_path: Path) -> None:
    """Installs its schema by itself; what was sent is there when it is opened again."""
    directory = str(tmp_path / "here")
    with headgate.connect(directory=directory) as hg:
        stream = hg.stream("orders", create=True)
        consumer = stream.consumer("billing", create=True)
        stream.send({"quantity": 4}, key="orders.cus_a.ord_1")
        [message] = consumer.receive(10, wait=5)
        assert (message.data, message.key) == ({"quantity": 4}, "orders.cus_a.ord_1")
        stream.send("later")
        url = hg.url
        with headgate.connect(directory=directory) as second:
            assert second.url == url, "one server for all that use the directory"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    with headgate.connect(directory=directory) as hg:
        [message] = hg.stream("orders").consumer("billing").receive(10, wait=5)
        assert message.data == "later"


def test_without_open(database_url: str) -> None:
    hg = headgate.Headgate(database_url)
    with pytest.raises(headgate.Error, match=r"not open[\s\S]*hint: "):
        hg.stream("orders")
    with pytest.raises(headgate.Error, match=r"not running[\s\S]*hint: "):
        headgate.Headgate().url  # noqa: B018


def test_closed(database_url: str) -> None:
    """Closing twice does nothing; a call afterwards says what to do; it can be opened again."""
    hg = headgate.connect(database_url)
    stream = hg.stream("orders", create=True)
    consumer = stream.consumer("billing", create=True)
    hg.close()
    hg.close()
    for call in (lambda: stream.send("x"), lambda: consumer.receive(), lambda: hg.streams()):
        with pytest.raises(headgate.Error, match=r"not open[\s\S]*hint: "):
            call()
    with pytest.raises(headgate.Error, match="not open"), consumer.transaction():
        pytest.fail("the block must not run")
    with hg:
        stream.send("x")
        assert [m.data for m in consumer.receive(wait=5)] == ["x"]


def test_the_server_goes_away_and_comes_back(database_url: str) -> None:
    """Connections that were cut are replaced: at most one call each fails, and says that it can be repeated."""
    with headgate.connect(database_url) as hg:
        stream = hg.stream("orders", create=True)
        with psycopg.connect(database_url, autocommit=True) as db:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headgate' "
                "and datname = current_database()"
            )
        with pytest.raises(headgate.errors.ConnectionFailed, match="repeated"):
            stream.send("x")
        stream.send("x")


def test_a_pool_that_is_used_up(database_url: str) -> None:
    with headgate.connect(database_url, max_connections=1, timeout=0.2) as hg:
        stream = hg.stream("orders", create=True)
        with hg.pool.connection():
            with pytest.raises(
                headgate.errors.ConnectionFailed, match=r"all 1 connections .* in use for 0.2 s\nhint: give it more"
            ):
                stream.send("x")
        stream.send("x")


def test_threads_share_one_client(hg: headgate.Headgate, stream: headgate.Stream, consumer: headgate.Consumer) -> None:
    """Eight threads send, receive, ack, and work in transactions, all on the same objects."""
    errors: list[BaseException] = []
    seen: list[int] = []
    target = 8 * 30

    def work(number: int) -> None:
        try:
            for n in range(10):
                stream.send_batch([{"thread": number, "n": n}] * 3)
                with consumer.transaction(2) as (_, messages):
                    pass
                seen.extend(m.seq for m in messages)
                messages = consumer.receive(3)
                assert consumer.ack(messages) == headgate.types.Settled(len(messages), 0)
                seen.extend(m.seq for m in messages)
            while len(seen) < target and not errors:
                messages = consumer.receive(10, wait=0.05)
                assert consumer.ack(messages).stale == 0
                seen.extend(m.seq for m in messages)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(seen) == len(set(seen)) == target
    wait_until(lambda: consumer.info().lag == 0, 5)


def test_connections_keep_no_large_result(hg: headgate.Headgate) -> None:
    """A connection keeps the cursor of its last statement, and with it what that sent and found, if it is small."""
    with hg.pool.connection() as own:
        for params, is_kept in ((("x", 1), True), (("x" * 100_000, 1), False), (("x", 1000), False), (("x", 1), True)):
            rows = own.rows("select repeat(%s, 1000) from generate_series(1, %s)", params, prepare=True, binary=False)
            assert len(rows) == params[1]
            assert (own._kept is not None) is is_kept
        kept = own._kept
        with pytest.raises(psycopg.Error, match="division by zero"):
            own.rows("select 1 / %s::int", (0,), prepare=True, binary=False)
        assert own.rows("select %s::int", (1,), prepare=True, binary=True) == [(1,)]
        assert own._kept is not kept


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db.example:5433/shop?sslpassword=s3cret", "postgresql://ann@db.example:5433/shop"),
        ("host=a,b dbname=shop password=s3cret passfile=/s3cret", "postgresql://a,b/shop"),
        ("postgresql://ann:s3c@ret@x:y/shop", "a URL that cannot be read"),
    ],
)
def test_what_a_client_is_connected_to(url: str, shown: str) -> None:
    assert repr(headgate.Headgate(url)) == f"<Headgate: {shown}, not open>"
    assert repr(headgate.AsyncHeadgate(url)) == f"<AsyncHeadgate: {shown}, not open>"


def test_an_open_client_says_so(hg: headgate.Headgate, cluster: Cluster) -> None:
    name = hg.run("select current_database()")[0][0]
    assert repr(hg) == f"<Headgate: postgresql://postgres@{cluster.socket_dir}:5432/{name}>"
    assert repr(headgate.Headgate()) == "<Headgate: an embedded PostgreSQL, not open>"
