"""A server of several processes: one port, one address, and none that dies takes anything with it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

import headgate
from headgate.server.http.limits import Rates
from headgate.server.processes import cores
from headgate.server.processes.shared import PLACE_GROUPS, RATE_GROUPS, WAYS, Shared
from headgate.server.settings import Settings
from support.receivers import SECRET, receiver
from support.servers import Replica, data, error, replica
from support.waiting import wait_until

TWO = "processes=2"


def children(server: Replica) -> list[psutil.Process]:
    """The processes that serve, the first one first."""
    return sorted(psutil.Process(server.process.pid).children(), key=lambda p: p.pid)


def metric(text: str, name: str) -> float:
    """The sum of a metric's samples."""
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


@contextmanager
def connections(server: Replica, count: int) -> Iterator[list[httpx.Client]]:
    """Clients with a connection each: they are shared out evenly, so that two are with two processes."""
    with ExitStack() as stack:
        made = [stack.enter_context(server.client()) for _ in range(count)]
        for client in made:
            data(client.get("/healthz"))
        yield made


def test_connections_are_shared_out_evenly(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path, TWO) as server, connections(server, 10):
        counts = [len([c for c in p.net_connections("tcp") if c.status == "ESTABLISHED"]) for p in children(server)]
        assert counts == [5, 5]


def test_metrics_are_of_all_processes(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("s", create=True)
    body = {"messages": [{"data": 1}, {"data": 2}]}
    with replica(database_url, tmp_path, TWO) as server, connections(server, 2) as clients:
        for client in clients:
            for _ in range(3):
                data(client.post("/api/streams/s/messages", json=body))
        for client in clients:
            text = client.get("/metrics").text
            assert metric(text, "headgate_http_messages_total") == 12
            assert metric(text, "headgate_commit_seconds_count") >= 2
            assert metric(text, "headgate_http_connections") == 2
            assert metric(text, "headgate_processes") == 2
            route = r'headgate_http_request_seconds_count\{route="/api/streams/\{stream\}/messages",method="POST"\} 6'
            assert re.search(route, text)
        # a process that is killed has its part in them for ever
        first, second = children(server)
        second.kill()
        wait_until(lambda: len(children(server)) == 2 and second.pid not in [p.pid for p in children(server)])
        with server.client() as client:
            wait_until(lambda: metric(client.get("/metrics").text, "headgate_process_restarts_total") == 1)
            text = client.get("/metrics").text
            assert metric(text, "headgate_http_messages_total") == 12
            assert metric(text, "headgate_batch_calls_total") == 6
        assert first.is_running()


def test_a_rate_limit_is_that_of_all_processes(database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path, TWO) as server:
        token = server.new_token("monitor", rate_limit=20)
        with server.client(token) as one, server.client(token) as two:
            began = time.monotonic()
            answers = [client.get("/api/streams").status_code for _ in range(50) for client in (one, two)]
            most = 20 + 20 * (time.monotonic() - began) + 1
        assert 20 <= answers.count(200) <= most
        assert answers.count(429) == 100 - answers.count(200)


def test_max_waiting_is_that_of_all_processes(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("s", create=True).consumer("c", create=True, max_waiting=2)
    path = "/api/streams/s/consumers/c/receive"
    with (
        replica(database_url, tmp_path, TWO) as server,
        connections(server, 4) as clients,
        ThreadPoolExecutor(4) as threads,
    ):
        polls = [threads.submit(c.get, path, params={"wait_ms": 20_000}) for c in clients[:2]]
        wait_until(lambda: metric(clients[2].get("/metrics").text, "headgate_http_polls_waiting") == 2)
        for client in clients[2:]:
            assert error(client.get(path, params={"wait_ms": 1000}), 429) == "too_many_waiting"
        # what a killed process had waiting counts no more
        children(server)[1].kill()
        wait_until(lambda: any(p.done() for p in polls))
        with server.client() as client:
            wait_until(lambda: metric(client.get("/metrics").text, "headgate_http_polls_waiting") == 1)
            last = threads.submit(client.get, path, params={"wait_ms": 20_000})
            hg.stream("s").send_batch([1, 2])
            data(last.result())


@pytest.mark.alone
def test_what_is_changed_holds_in_all_processes(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("s", create=True)
    with replica(database_url, tmp_path, TWO) as server, connections(server, 2) as clients:
        made = data(clients[0].post("/api/tokens", json={"name": "t", "scopes": ["monitor"]}))
        with server.client(made["token"]) as one, server.client(made["token"]) as two:
            for client in (one, two):
                data(client.get("/api/streams"))
            data(clients[0].delete(f"/api/tokens/{made['id']}"))
            began = time.monotonic()
            wait_until(lambda: {c.get("/api/streams").status_code for c in (one, two)} == {401})
            assert time.monotonic() - began < 0.9, "not only when it is forgotten, after a second"


def test_a_publish_wakes_polls_in_another_process(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    hg.stream("s", create=True).consumer("c", create=True)
    with replica(database_url, tmp_path, TWO) as server, connections(server, 2) as (one, two):
        with ThreadPoolExecutor(1) as threads:
            for n in range(20):
                poll = threads.submit(two.get, "/api/streams/s/consumers/c/receive", params={"wait_ms": 20_000})
                wait_until(lambda: metric(one.get("/metrics").text, "headgate_http_polls_waiting") == 1)
                data(one.post("/api/streams/s/messages", json={"messages": [{"data": n}]}))
                assert [m["message"]["data"] for m in data(poll.result(10))] == [n]


FEW_LOOKS = """
from headgate.server import run
from headgate.server.flow import polling
polling.SCOUT_EVERY, polling.AGAIN = 4, (0.002,)
run.main({arguments!r})
"""


@pytest.mark.alone
def test_an_ack_frees_a_key_for_a_poll_in_another_process(database_url: str, hg: headgate.Headgate) -> None:
    """Not only when it looks by itself, later: here it does so every four seconds."""
    hg.stream("s", create=True).consumer("c", create=True, order="key")
    path = "/api/streams/s/consumers/c"
    took: list[float] = []
    code = FEW_LOOKS.format(arguments=[database_url, "0", "auth=off", TWO])
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        server = Replica(process.stdout.readline().strip(), "", process)
        with connections(server, 2) as (one, two), ThreadPoolExecutor(1) as threads:
            for _ in range(5):
                both = {"messages": [{"data": n, "key": "k"} for n in (1, 2)]}
                data(one.post("/api/streams/s/messages", json=both))  # through the server: it knows of the commit
                [first] = data(one.get(f"{path}/receive", params={"wait_ms": 9000}))
                poll = threads.submit(two.get, f"{path}/receive", params={"wait_ms": 8000})
                wait_until(lambda: metric(one.get("/metrics").text, "headgate_http_polls_waiting") == 1)
                began = time.monotonic()
                data(one.post(f"{path}/ack", json={"ack_ids": [first["ack_id"]]}))
                [second] = data(poll.result(20))
                took.append(time.monotonic() - began)
                data(two.post(f"{path}/ack", json={"ack_ids": [second["ack_id"]]}))
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert sorted(took)[len(took) // 2] < 1, took


def test_push_is_done_by_one_process(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    """So that `concurrency` stays that of a server; and by the next one when that one dies."""
    orders = hg.stream("orders", create=True, lanes=4)
    with receiver(lambda _: time.sleep(0.01) or 200) as there:
        orders.consumer("c", create=True, ack_wait=1, push={"url": there.url, "secret": SECRET, "concurrency": 2})
        with replica(database_url, tmp_path, TWO, "push_private=on") as server:
            orders.send_batch(range(40))
            wait_until(lambda: hg.insights.consumer("orders", "c").lag == 0)
            assert there.most_at_once <= 2
            assert sorted(there.datas) == list(range(40))
            children(server)[0].kill()
            orders.send("after")
            wait_until(lambda: "after" in there.datas)


def test_maintenance_is_done_by_one_process(database_url: str, tmp_path: Path, db: psycopg.Connection) -> None:
    with replica(database_url, tmp_path, "processes=3"):
        ours = "select count(*) from pg_stat_activity where datname = current_database() and query ~ 'maintain'"
        wait_until(lambda: db.execute(ours).fetchone()[0] >= 2)  # type: ignore[index] - this very session is one
        assert db.execute(ours).fetchone() == (2,)


# The lives of processes


def test_kill_of_the_parent(database_url: str, tmp_path: Path) -> None:
    """The port is free at once, and the others finish what they do and end."""
    with replica(database_url, tmp_path, TWO) as server:
        left = children(server)
        port = int(server.url.rpartition(":")[2])
        server.process.kill()
        server.process.wait()
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
        wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left))


def test_sigterm_lets_requests_finish(database_url: str, hg: headgate.Headgate, tmp_path: Path) -> None:
    """Of the whole server, and of one process, which is replaced."""
    hg.stream("s", create=True).consumer("c", create=True)
    path = "/api/streams/s/consumers/c/receive"
    with replica(database_url, tmp_path, TWO) as server, ThreadPoolExecutor(2) as threads:
        with connections(server, 2) as clients:
            polls = [threads.submit(c.get, path, params={"wait_ms": 30_000}) for c in clients]
            with server.client() as other:
                wait_until(lambda: metric(other.get("/metrics").text, "headgate_http_polls_waiting") == 2)
                before = children(server)
                before[1].terminate()
                wait_until(lambda: sum(p.done() for p in polls) == 1)
                wait_until(lambda: not before[1].is_running() and len(children(server)) == 2)
            server.process.terminate()
            assert [data(p.result(10)) for p in polls] == [[], []]
            assert server.process.wait(20) == 0


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.2])
def test_sigterm_while_it_starts(database_url: str, tmp_path: Path, after: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.server.run", database_url, "0", f"token_file={tmp_path / 'token'}", TWO],
        stdout=subprocess.PIPE,
    )
    try:
        parent = psutil.Process(process.pid)
        time.sleep(after)  # any moment of the start is meant: this is not a wait for something
        left = parent.children()
        process.terminate()
        # before its handlers are there the signal ends it by itself
        assert process.wait(30) in (0, -signal.SIGTERM)
        wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left))
    finally:
        process.kill()
        process.wait()


def test_a_process_that_dies_again_and_again(database_url: str, tmp_path: Path) -> None:
    """The others serve, and it is not started without a pause."""
    with replica(database_url, tmp_path, TWO) as server:
        first = children(server)[0]
        seen: set[int] = set()
        began = time.monotonic()
        while len(seen) < 5:
            for child in children(server):
                if child.pid != first.pid and child.pid not in seen:
                    seen.add(child.pid)
                    child.kill()
            assert time.monotonic() - began < 30
        assert time.monotonic() - began > 0.1 + 0.2 + 0.4 + 0.8
        with server.client() as another:
            data(another.get("/healthz"))


def up(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "up", *arguments],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken_is_said_once(database_url: str, tmp_path: Path, processes: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        there = {"HEADGATE_EMBEDDED_DIR": str(tmp_path)}
        out, err = up("--processes", processes, "--port", port, "--database", database_url, **there).communicate(
            timeout=30
        )
    assert out == ""
    lines = [line for line in err.splitlines() if line.strip()]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_database_that_refuses_is_said_once(database_url: str, tmp_path: Path, processes: str) -> None:
    url = re.sub(r"(?<=@/)\w+", "no_such_database", database_url)
    assert url != database_url
    process = up("--processes", processes, "--port", "0", "--database", url, HEADGATE_EMBEDDED_DIR=str(tmp_path))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err.count("does not exist") == 1


def test_few_files(database_url: str, tmp_path: Path) -> None:
    """More connections than there are files for are refused; those that are there go on, and so does the server."""
    command = f"ulimit -n 130; exec {sys.executable} -m headgate.server.run '{database_url}' 0 auth=off {TWO}"
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        host, port = url.removeprefix("http://").split(":")
        with httpx.Client(base_url=url) as client:
            data(client.get("/healthz"))
            many = []
            for _ in range(300):
                many.append(socket.create_connection((host, int(port))))
            data(client.get("/healthz"))
            for one in many:
                one.close()
        with httpx.Client(base_url=url) as client:
            wait_until(lambda: client.get("/healthz").is_success)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


# Parts


def test_shares_of_one_process() -> None:
    whole = Settings(processes=4, connections=10, body_limit=100, bodies_limit=200)
    first, second = whole.of_process(0), whole.of_process(1)
    assert (first.connections, first.in_work, first.max_connections) == (3, 1000, 4)
    assert first.bodies_limit == 100, "a request of the allowed size is possible in each"
    assert (first.maintain, first.push, first.first_token, first.audit_days) == (True, True, True, 90)
    assert (second.maintain, second.push, second.first_token, second.audit_days) == (False, False, False, None)


def test_shared_rates_are_those_of_one_process() -> None:
    now = 100.0
    shared = Shared(2).rates(0)
    shared._clock = lambda: now
    alone = Rates(lambda: now)
    found: list[list[bool]] = [[], []]
    for step in range(200):
        now += (step % 7) / 50
        for number, rates in enumerate((shared, alone)):
            try:
                rates.spend(f"t{step % 3}", 2)
                found[number].append(True)
            except Exception:
                found[number].append(False)
    assert found[0] == found[1]
    assert True in found[0]
    assert False in found[0]


def test_more_names_than_there_is_room_for() -> None:
    shared = Shared(2)
    rates, places, others = shared.rates(1), shared.places(0), shared.places(1)
    for n in range(RATE_GROUPS * WAYS + 5000):
        rates.spend(str(n), 1)
    some = [("s", str(n)) for n in range(PLACE_GROUPS * WAYS + 1000)]
    for place in some:
        places.enter(place, 1)
    for place in some:
        places.leave(place)
    others.enter(("s", "1"), 1)
    with pytest.raises(Exception, match="1 long polls wait"):
        places.enter(("s", "1"), 1)
    shared.forget(1)
    places.enter(("s", "1"), 1)


def test_cores_and_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cores.by_cores() == 8
    for text, wanted in (("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert cores.by_cores() == wanted
