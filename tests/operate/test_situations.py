"""What a person on call meets, made on purpose: the metric that shows it, the alert that fires on what was recorded
from /metrics, what the doctor says, and that its advice, done as written, ends it."""

from __future__ import annotations

import http.server
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.database import schema
from headgate.postgres.cluster import Cluster
from headgate.types import Finding
from support.postgres import TEMPLATE, NewCluster
from support.promql import compile_query, firing
from support.servers import data, drop_stream, eventually
from support.situations import RULES, Situation, played_back, situation
from support.waiting import wait_until

S = "/api/streams/orders"
C = S + "/consumers/billing"
OF = {"stream": "orders", "consumer": "billing"}
WORKER = """
import sys, headgate
with headgate.connect(sys.argv[1]) as hg:
    worker = hg.stream("orders").consumer("billing").worker(lambda message: None)
    print("works", flush=True)
    worker.run()
"""


@pytest.fixture(scope="module")
def own_cluster(new_cluster: NewCluster) -> Cluster:
    """One that may be stopped, and whose ids are old soon."""
    cluster = new_cluster()
    cluster.stop()
    cluster.settings |= {"autovacuum_freeze_max_age": "100000", "autovacuum_naptime": "1s"}
    cluster.start()
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}")
    with psycopg.connect(cluster.url(TEMPLATE)) as connection:
        connection.execute(schema.install_sql())
    return cluster


@dataclass
class Case:
    """A situation: how it is made, and by what it shows."""

    make: Callable[[Situation, ExitStack], Callable[[], object]]  # -> what happens between two scrapes while it lasts
    alert: str
    shows: Callable[[Situation], bool]  # the metric
    subject: str | None  # of the doctor's finding
    finding: str = ""
    mend: Callable[[Situation, str], object] | None = None  # instead of just doing what the advice says
    lasting: set[str] = field(default_factory=set)
    options: tuple[str, ...] = ()


def stream(s: Situation, consumer: dict[str, Any] | None = None, **settings: Any) -> None:
    data(s.http.post("/api/streams", json={"name": "orders", **settings}))
    data(s.http.post(S + "/consumers", json={"name": "billing", **(consumer or {})}))


def send(s: Situation, n: int = 1, **more: Any) -> None:
    data(s.http.post(S + "/messages", json={"messages": [{"data": i, **more} for i in range(n)]}))


def take(s: Situation, n: int = 1) -> list[Any]:
    return list(data(s.http.get(C + "/receive", params={"batch_size": n})))


def ack(s: Situation, messages: list[Any]) -> None:
    data(s.http.post(C + "/ack", json={"ack_ids": [m["ack_id"] for m in messages]}))


def later(s: Situation) -> None:
    """As if nobody had received for a quarter of a minute."""
    s.db.execute(
        "update headgate.cursor set served_at = served_at - interval '15 s', "
        "rate_since = rate_since - interval '15 s', "
        "earlier_at = earlier_at - interval '15 s'"
    )


def nothing() -> None:
    time.sleep(0.1)


# Dead workers


@contextmanager
def worker(s: Situation) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, s.url], stdout=subprocess.PIPE, text=True, env=os.environ
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline().strip() == "works"
        yield process
    finally:
        process.kill()
        process.wait()


def dead_workers(s: Situation, stack: ExitStack) -> Callable[[], object]:
    stream(s, {"ack_wait_ms": 1000})
    with worker(s):
        send(s, 5)
        wait_until(lambda: s.value("headgate_consumer_delivered_total", **OF) == 5)
        wait_until(lambda: s.value("headgate_consumer_lag", **OF) == 0)
    send(s, 7)
    wait_until(lambda: s.value("headgate_consumer_delivered_rate", **OF) == 0)
    return nothing


def start_workers(s: Situation, advice: str) -> None:
    assert advice.startswith("Start its workers")
    with worker(s):
        wait_until(lambda: s.value("headgate_consumer_lag", **OF) == 0)


# Poison


def fail_once(s: Situation) -> None:
    for m in eventually(C + "/receive", s.http, 1):
        data(s.http.post(C + "/nack", json={"ack_ids": [m["ack_id"]], "delay_ms": 0, "error": "no such customer"}))


def poison_loop(s: Situation, stack: ExitStack) -> Callable[[], object]:
    stream(s, {"order": "key"})
    send(s, 4, key="k")
    for _ in range(12):
        fail_once(s)
    return lambda: fail_once(s)


def dead_letters(s: Situation, stack: ExitStack) -> Callable[[], object]:
    stream(s, {"max_deliver": 1})
    s.record(1)  # there were none before

    def another() -> None:
        send(s)
        fail_once(s)

    another()
    return another


# Too slow


def falls_behind(s: Situation, stack: ExitStack) -> Callable[[], object]:
    stream(s)
    for _ in range(3):
        send(s, 1000)
    ack(s, eventually(C + "/receive", s.http, 1))

    def on() -> None:
        send(s, 100)
        ack(s, take(s, 5))

    wait_until(lambda: on() or s.doctor("consumer orders/billing"))
    return on


# Full


def full_stream(s: Situation, stack: ExitStack) -> Callable[[], object]:
    stream(s, max_storage=2_000_000, retain_at_least_ms=86_400_000)

    def is_full() -> bool:
        payload = {"messages": [{"data": random.randbytes(25_000).hex()} for _ in range(5)]}  # (x * 50,000 is small)
        return s.http.post(S + "/messages", json=payload).status_code == 409

    wait_until(is_full)
    return nothing


def give_room(s: Situation, advice: str) -> None:
    s.follow(advice)
    wait_until(lambda: s.http.post(S + "/messages", json={"messages": [{"data": "x"}]}).is_success)


# The database


def database_away(s: Situation, stack: ExitStack) -> Callable[[], object]:
    s.cluster.stop("immediate")
    stack.callback(lambda: s.cluster.is_running() or s.cluster.start())
    return nothing


def start_it(s: Situation, advice: str) -> None:
    answer = s.http.get("/readyz").json()["error"]
    assert answer["code"] == "database_away"
    assert answer["hint"] == "see that it runs and can be reached from here"
    s.cluster.start()
    wait_until(lambda: s.http.get("/readyz").is_success)
    s.db = psycopg.connect(s.url, autocommit=True)


def pinned_snapshot(s: Situation, stack: ExitStack) -> Callable[[], object]:
    forgotten = psycopg.connect(s.url, application_name="report")
    stack.callback(forgotten.close)
    forgotten.execute("set transaction isolation level repeatable read")
    forgotten.execute("select 1")
    s.session = forgotten.info.backend_pid  # type: ignore[attr-defined]
    wait_until(lambda: s.value("headgate_database_oldest_transaction_seconds") > 4)
    return nothing


def wraparound(s: Situation, stack: ExitStack) -> Callable[[], object]:
    """In another database of the server, held back by a transaction that somebody prepared and forgot."""
    s.db.execute("create database elsewhere")
    stack.callback(_drop_elsewhere, s.cluster)
    with psycopg.connect(s.cluster.url("elsewhere"), autocommit=True) as other:
        for statement in ("begin", "create table t ()", "prepare transaction 'forgotten'"):
            other.execute(statement)
    s.db.execute(
        "do $$ begin for i in 1 .. 215000 loop perform pg_current_xact_id(); commit; end loop; end $$"
    )  # fmt: skip
    return nothing


def _drop_elsewhere(cluster: Cluster) -> None:
    with psycopg.connect(cluster.url("elsewhere"), autocommit=True) as other:
        if other.execute("select from pg_prepared_xacts").fetchone() is not None:
            other.execute("rollback prepared 'forgotten'")
    with psycopg.connect(cluster.url(), autocommit=True) as admin:
        admin.execute("drop database elsewhere with (force)")


def freeze(s: Situation, advice: str) -> None:
    assert s.follow(advice) == [
        "psql -d elsewhere -c \"rollback prepared 'forgotten'\"", "vacuumdb --freeze --dbname=elsewhere",
    ]  # fmt: skip


# Pushing


class Endpoint(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def endpoint(port: int) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def push_target_down(s: Situation, stack: ExitStack) -> Callable[[], object]:
    with endpoint(0) as port:
        s.port = port  # type: ignore[attr-defined]
        secret = "whsec_" + "A" * 32
        push = {"url": f"http://127.0.0.1:{port}/hook", "secret": secret}
        stream(s, {"push": push, "backoff": 0.2})
        send(s)
        wait_until(lambda: s.value("headgate_push_total", result="done") == 1)
    send(s)
    failures = [1.0, 1.0]

    def failed_again() -> None:
        """A few times: what fails is tried ever more seldom."""
        wanted = failures.pop() + s.value("headgate_push_total", result="failed") if failures else 0
        wait_until(lambda: s.value("headgate_push_total", result="failed") >= wanted)

    wait_until(lambda: s.value("headgate_consumer_most_failures", **OF) >= 3)
    shown = data(s.http.get(C))["push"]["last_error"]
    assert "the connection failed" in shown, "and `consumer show` says why"
    return failed_again


def open_endpoint(s: Situation, advice: str) -> None:
    assert advice.startswith("See that the endpoint answers")
    with endpoint(s.port):  # type: ignore[attr-defined]
        s.follow(advice)
        wait_until(lambda: s.value("headgate_consumer_lag", **OF) == 0)


# Sources of tables


SHOP = {"source": "shop"}


def source(s: Situation, stack: ExitStack, url: str, **settings: Any) -> None:
    data(s.http.post("/api/streams", json={"name": "changes"}))
    asked = {"name": "shop", "stream": "changes", "kind": "postgres", "url": url, "tables": ["customers"], **settings}
    data(s.http.post("/api/sources", json=asked))
    stack.callback(lambda: data(s.http.delete("/api/sources/shop")))
    wait_until(lambda: s.value("headgate_source_state", state="reading", **SHOP) == 1)


def lost_source(s: Situation, stack: ExitStack) -> Callable[[], object]:
    s.db.execute("create table customers (id int primary key)")
    source(s, stack, s.url)
    s.db.execute("drop publication headgate_shop")
    return nothing


def unread_source(s: Situation, stack: ExitStack) -> Callable[[], object]:
    name = s.db.info.dbname
    s.db.execute(f"create role shopper login replication; grant create on database {name} to shopper")
    stack.callback(lambda: s.db.execute("drop owned by shopper; drop role shopper"))
    s.db.execute("create table customers (id int primary key); alter table customers owner to shopper")
    source(s, stack, s.url.replace("postgres@", "shopper@"))
    stack.callback(lambda: s.db.execute("alter role shopper login"))
    s.db.execute("alter role shopper nologin")
    s.db.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'shopper'")
    return nothing


def let_it_in(s: Situation, advice: str) -> None:
    assert advice == "run ALTER ROLE … LOGIN there"
    s.db.execute("alter role shopper login")


def paused_source(s: Situation, stack: ExitStack) -> Callable[[], object]:
    s.db.execute("create table customers (id int primary key, t text)")
    source(s, stack, s.url, warn_bytes=5_000_000)
    data(s.http.post("/api/sources/shop/pause"))
    s.db.execute("insert into customers select i, repeat('x', 500) from generate_series(1, 20000) i")
    return nothing


def resume_it(s: Situation, advice: str) -> None:
    s.follow(advice)
    wait_until(lambda: s.value("headgate_source_messages_total", **SHOP) == 20_000)
    s.db.execute("checkpoint")  # (what a slot needs is reckoned anew when the server notes what runs in it)


BILLING = "consumer orders/billing"
CASES = {
    "dead workers": Case(
        dead_workers, "HeadgateConsumerStuck",
        lambda s: s.value("headgate_consumer_unread", **OF) == 7, BILLING, "has stopped", start_workers,
    ),
    "poison loop": Case(
        poison_loop, "HeadgatePoisonMessage",
        lambda s: s.value("headgate_consumer_redelivered_total", **OF) >= 10
        and s.value("headgate_consumer_most_failures", **OF) >= 10,
        BILLING, 'has failed \\d\\d times for consumer "billing", and 3 messages of its key wait behind it; '
        "the last error was: no such customer",
    ),
    "steady falling behind": Case(
        falls_behind, "HeadgateConsumerFallsBehind",
        lambda s: s.value("headgate_consumer_lag", **OF) > 2500, BILLING, "falls behind: about|falls behind: \\d+",
    ),
    "full stream": Case(
        full_stream, "HeadgateStreamFull",
        lambda s: s.value("headgate_stream_full", stream="orders") == 1, "stream orders", "is full", give_room,
    ),
    "database away": Case(
        database_away, "HeadgateDatabaseAway", lambda s: s.value("headgate_database_up") == 0, None, mend=start_it,
    ),
    "dead letters": Case(
        dead_letters, "HeadgateDeadLetters",
        lambda s: s.value("headgate_consumer_dead", **OF) > 0, BILLING, "dead letters .* error was: no such customer",
    ),
    "pinned snapshot": Case(
        pinned_snapshot, "HeadgateOldTransaction",
        lambda s: s.value("headgate_database_oldest_transaction_seconds") > 4,
        "session", 'application "report", idle in transaction\\) has a transaction open',
        lasting={"headgate_database_oldest_transaction_seconds"},
    ),
    "wraparound": Case(
        wraparound, "HeadgateNotFrozen",
        lambda s: s.value("headgate_database_wraparound_transactions") > 200_000,
        "database elsewhere", 'It is held back by prepared transaction "forgotten" of database "elsewhere"', freeze,
    ),
    "push target down": Case(
        push_target_down, "HeadgatePushFails",
        lambda s: s.value("headgate_consumer_most_failures", **OF) >= 3,
        BILLING, "Pushing to http://127.0.0.1:\\d+/hook fails: .* the last answer was: the connection failed",
        open_endpoint, options=("push_private=on",),
    ),
    "lost source": Case(
        lost_source, "HeadgateSourceLost",
        lambda s: s.value("headgate_source_state", state="lost", **SHOP) == 1,
        "source shop", 'is lost: the publication "headgate_shop" is gone: changes since',
    ),
    "source that nobody can read": Case(
        unread_source, "HeadgateSourceNotRead",
        lambda s: s.value("headgate_source_state", state="failing", **SHOP) == 1,
        "source shop", "cannot be read since .*: the user of the source's URL may not log in", let_it_in,
    ),
    "paused source": Case(
        paused_source, "HeadgateSourceRetains",
        lambda s: s.value("headgate_source_retained_bytes", **SHOP) > 5_000_000,
        "source shop", "is paused, and its slot keeps \\d+ .B of that database's log", resume_it,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_situation(name: str, own_cluster: Cluster, tmp_path: Path) -> None:
    case = CASES[name]
    with situation(own_cluster, tmp_path, *case.options) as s, ExitStack() as stack:
        s.record(3)
        assert s.fires(case.lasting - {"headgate_database_oldest_transaction_seconds"}) == set(), "nothing is wrong yet"
        goes_on = case.make(s, stack)
        wait_until(lambda: case.shows(s))
        s.record(4, goes_on)
        assert case.alert in s.fires(case.lasting)
        advice = ""
        if case.subject is not None:
            goes_on()
            subject = f"session {s.session}" if case.subject == "session" else case.subject  # type: ignore[attr-defined]

            def found() -> list[Finding]:
                return [f for f in s.doctor(subject) if re.search(case.finding, f.finding)]

            # (the first thing that is said of a source that is cut off is that it was)
            wait_until(lambda: len(found()) == 1)
            advice = found()[0].advice
        if case.mend is not None:
            case.mend(s, advice)
        else:
            s.follow(advice)
        wait_until(lambda: not case.shows(s))
        if case.subject is not None:
            wait_until(lambda: not [f for f in s.doctor(subject) if re.search(case.finding, f.finding)])
        s.record(3)
        assert case.alert not in s.fires()


class TestFalseAlarms:
    """What looks like trouble and is none."""

    @pytest.fixture(scope="class")
    def shared(self, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Situation]:
        with situation(own_cluster, tmp_path_factory.mktemp("server")) as found:
            yield found

    @pytest.fixture
    def s(self, shared: Situation) -> Iterator[Situation]:
        shared.scrapes.clear()
        yield shared
        if shared.http.get(S).is_success:
            drop_stream(shared.http, "orders")

    def quiet(self, s: Situation) -> None:
        later(s)
        assert s.value("headgate_consumer_delivered_rate", **OF) == 0
        s.record(4)
        assert s.fires() == set()

    def test_a_paused_consumer(self, s: Situation) -> None:
        stream(s)
        data(s.http.post(C + "/pause"))
        send(s, 1500)
        s.record(1)
        send(s, 500)
        self.quiet(s)

    def test_messages_that_are_not_due_yet(self, s: Situation) -> None:
        stream(s)
        send(s, 3, delay_ms=3_600_000)
        assert take(s, 10) == []
        self.quiet(s)

    def test_a_quiet_stream_that_was_busy(self, s: Situation) -> None:
        stream(s)
        for _ in range(3):
            send(s, 100)
            ack(s, eventually(C + "/receive", s.http, 100))
        self.quiet(s)

    def test_a_few_failures(self, s: Situation) -> None:
        stream(s)
        send(s)
        for _ in range(3):
            fail_once(s)
        ack(s, eventually(C + "/receive", s.http, 1))
        self.quiet(s)
        assert s.doctor(BILLING) == []

    def test_a_burst_that_is_being_worked_off(self, s: Situation) -> None:
        """Much waits, but not for long: the doctor does not complain."""
        stream(s)
        send(s, 3000)
        for _ in range(4):
            ack(s, eventually(C + "/receive", s.http, 300))
        assert s.doctor(BILLING, 60) == []

    def test_a_stream_that_is_dropped_and_made_again(self, s: Situation) -> None:
        """Counters begin again: nothing was lost, dead or pushed because of that."""
        for _ in range(3):
            stream(s, {"max_deliver": 1})
            send(s, 20)
            ack(s, eventually(C + "/receive", s.http, 20))
            s.record(1)
            drop_stream(s.http, "orders")
            s.record(1)
        assert s.fires() == set()


def test_replicas_are_not_counted_twice(own_cluster: Cluster, tmp_path: Path) -> None:
    """Three servers say the same: one alert for a consumer, and one for the database, not three."""
    with situation(own_cluster, tmp_path, replicas=3) as s:
        stream(s)
        send(s, 20)
        wait_until(lambda: take(s, 5))
        later(s)
        s.record(4)
        instances = {dict(labels)["instance"] for scrape in s.scrapes for _, labels in scrape}
        assert len(instances) == 3
        found = firing(RULES, played_back(s.scrapes, set()))
        at_the_end = found[max(found)]
        assert at_the_end == {("HeadgateConsumerStuck", frozenset({("job", "headgate"), *OF.items()}))}
        s.scrapes.clear()
        s.cluster.stop("immediate")
        try:
            s.record(3)
        finally:
            s.cluster.start()
        found = firing(RULES, played_back(s.scrapes, set()))
        assert [name for name, _ in found[max(found)]] == ["HeadgateDatabaseAway"]
        wait_until(lambda: s.http.get("/readyz").is_success)


def test_every_alert_is_understood() -> None:
    """Nothing of PromQL that is not evaluated here finds its way into the rules."""
    for rule in RULES:
        compile_query(rule["expr"])
