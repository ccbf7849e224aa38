"""Login roles through the SDK: each can do exactly its part and is told what is missing. (In SQL: test_rights.py.)"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

import headgate
from headgate.postgres.cluster import Cluster
from headgate.webhooks import new_secret
from support.waiting import wait_until

Login = Callable[..., str]
Call = Callable[[headgate.Headgate], object]

ROLES = ("headgate_owner", "headgate_producer", "headgate_consumer", "headgate_monitor")

_numbers = itertools.count(1)


@pytest.fixture
def login(cluster: Cluster) -> Iterator[Login]:
    """Makes login roles that are members of the given roles."""
    made: list[str] = []

    def new(*groups: str) -> str:
        name = f"login_{next(_numbers)}"
        made.append(name)
        with psycopg.connect(cluster.url(), autocommit=True) as admin:
            admin.execute(f"create role {name} login")
            for group in groups:
                admin.execute(f"grant {group} to {name}")
        return name

    yield new
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        for name in made:
            admin.execute(f"drop role {name}")


def as_role(url: str, role: str) -> str:
    """The URL with another user, and perhaps a password."""
    assert "//postgres@" in url
    return url.replace("//postgres@", f"//{role}@")


def received(hg: headgate.Headgate) -> headgate.Message:
    [message] = hg.stream("s").consumer("c").receive(1, wait=5)
    return message


def work(hg: headgate.Headgate) -> None:
    with hg.stream("s").consumer("c").transaction(1, wait=5) as (tx, messages):
        assert len(messages) == 1
        tx.execute("select 1")


PRODUCE: dict[str, Call] = {
    "send": lambda hg: hg.stream("s").send("x"),
    "send with id and delay": lambda hg: hg.stream("s").send("x", id="1", delay=60),
    "send_batch": lambda hg: hg.stream("s").send_batch(["x", "y"], key="k"),
}
CONSUME: dict[str, Call] = {
    "receive and ack": lambda hg: received(hg).ack(),
    "receive and nack": lambda hg: received(hg).nack(),
    "receive and extend": lambda hg: received(hg).extend(60),
    "receive with acks": lambda hg: hg.stream("s").consumer("c").receive(1, acks=[received(hg)]),
    "transaction": work,
    "tick": lambda hg: hg.stream("s").tick(),
}
LOOK: dict[str, Call] = {
    "streams": lambda hg: hg.streams(),
    "stream info": lambda hg: hg.stream("s").info(),
    "consumer info": lambda hg: hg.insights.consumer("s", "c"),
    "consumers": lambda hg: hg.stream("s").consumers(),
    "peek": lambda hg: hg.insights.peek("s", "c"),
    "messages": lambda hg: hg.insights.messages("s"),
    "message": lambda hg: hg.insights.message("s", 1),
    "dead letters": lambda hg: hg.insights.dead_letters("s", "c"),
    "sources": lambda hg: hg.sources.all(),
    "postgres sources": lambda hg: hg.sources.all_postgres(),
}
OWN: dict[str, Call] = {
    "create stream": lambda hg: hg.stream("another", create=True),
    "alter stream": lambda hg: hg.stream("s").alter(segment_rows=5000),
    "create consumer": lambda hg: hg.stream("s").consumer("another", create=True),
    "pause": lambda hg: hg.stream("s").consumer("c").pause(),
    "resume": lambda hg: hg.stream("s").consumer("c").resume(),
    "alter consumer": lambda hg: hg.stream("s").consumer("c").alter(max_ack_pending=100),
    "seek": lambda hg: hg.stream("s").consumer("c").seek("beginning"),
    "redrive": lambda hg: hg.stream("s").consumer("c").redrive(all=True),
    "purge_dead": lambda hg: hg.stream("s").consumer("c").purge_dead(all=True),
    "retry_now": lambda hg: hg.stream("s").consumer("c").retry_now(all=True),
    "replay": lambda hg: hg.stream("s").consumer("c").replay(from_seq=1),
    "discard": lambda hg: hg.stream("s").consumer("c").discard(all=True),
    "push": lambda hg: hg.stream("s").consumer("c").alter(push={"url": "http://x.example", "secret": new_secret()}),
    "create source": lambda hg: hg.sources.create("in", "s", scheme="none"),
    "alter source": lambda hg: hg.sources.alter("in", settings={"key": "k"}),
    "drop source": lambda hg: hg.sources.drop("in"),
    "maintain": lambda hg: hg.maintain(),
    "drop consumer": lambda hg: hg.stream("s").consumer("c").drop(),
    "drop stream": lambda hg: hg.stream("s").drop(),
}
ALL = PRODUCE | CONSUME | LOOK | OWN
OF_A_CONSUMER = {
    "pause", "resume", "alter consumer", "seek", "redrive", "purge_dead", "retry_now", "replay", "discard", "push",
    "drop consumer",
}  # fmt: skip
PARTS = {
    "headgate_producer": PRODUCE,
    "headgate_consumer": CONSUME,
    "headgate_monitor": LOOK,
    "headgate_owner": OWN,
}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("headgate_producer", PRODUCE),
        ("headgate_consumer", CONSUME),
        ("headgate_monitor", LOOK),
        ("headgate_owner", ALL),
    ],
    ids=["producer", "consumer", "monitor", "owner"],
)
def test_least_privilege(database_url: str, login: Login, role: str, allowed: dict[str, Call]) -> None:
    with headgate.connect(database_url) as hg:
        stream = hg.stream("s", create=True)
        stream.consumer("c", create=True, max_deliver=10)
        stream.send_batch(["m"] * 20)
    with headgate.connect(as_role(database_url, login(role))) as hg:
        for name, call in ALL.items():
            if name in allowed:
                call(hg)
                continue
            with pytest.raises(headgate.errors.NotAllowed) as caught:
                call(hg)
            [needed] = [r for r, calls in PARTS.items() if name in calls]
            if role == "headgate_producer" and name in OF_A_CONSUMER:
                needed = "headgate_consumer"  # it may not even look it up
            assert caught.value.hint == f"grant the role {needed}", name


def test_without_any_right(database_url: str, login: Login) -> None:
    with pytest.raises(headgate.errors.NotAllowed) as caught:
        headgate.connect(as_role(database_url, login()))
    for role in ROLES:
        assert role in str(caught.value.hint)


def test_who_may_not_migrate(cluster: Cluster, database_url: str, login: Login) -> None:
    """Neither a stranger into an empty database, nor an owner of streams, who does not own the schema."""
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute("create database nothing_yet")
        try:
            with pytest.raises(headgate.errors.NotAllowed) as caught:
                headgate.connect(as_role(cluster.url("nothing_yet"), login()), migrate=True)
        finally:
            admin.execute("drop database nothing_yet with (force)")
    assert "CREATE on the database" in str(caught.value.hint)
    owner = as_role(database_url, login("headgate_owner"))
    headgate.connect(owner, migrate=True).close()  # there is nothing to do
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("update headgate.functions_digest set digest = 'another'")
    with pytest.raises(headgate.errors.NotAllowed) as caught:
        headgate.connect(owner, migrate=True)
    assert "owner of the schema" in str(caught.value.hint)


def test_wrong_password(cluster: Cluster, database_url: str, login: Login) -> None:
    """The error names the role, never the password."""
    role = login("headgate_producer")
    hba = cluster.data_dir / "pg_hba.conf"
    before = hba.read_text()
    right, wrong = (as_role(database_url, f"{role}:the%20{word}%20one") for word in ("right", "secret"))
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute(f"alter role {role} password 'the right one'")
        try:
            hba.write_text(f"local all {role} scram-sha-256\n{before}")
            admin.execute("select pg_reload_conf()")
            wait_until(lambda: is_refused(wrong))
            headgate.connect(right).close()
            with pytest.raises(headgate.errors.ConnectionFailed) as caught:
                headgate.connect(wrong)
        finally:
            hba.write_text(before)
            admin.execute("select pg_reload_conf()")
    assert role in caught.value.message
    assert caught.value.hint
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def is_refused(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False
