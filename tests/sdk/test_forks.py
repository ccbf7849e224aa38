"""Processes forked from one that is connected: each has connections of its own, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import headgate

# Eight processes and their parent, which is connected before, as with gunicorn --preload and with multiprocessing. Each
# sends messages of its own and asks for what only it knows. `crossed` counts answers that were meant for another.
SYNC = """
import json, multiprocessing, os, sys
import headgate

def work(n, url, results):
    hg = HG if HG is not None else headgate.connect(url)
    stream = hg.stream("orders")
    crossed, seqs = 0, []
    for i in range(25):
        seqs.append(stream.send({"from": n, "i": i}))
        crossed += hg.run("select %s::text", (f"{n}.{i}",)) != [(f"{n}.{i}",)]
    results.put((n, crossed, seqs, hg.run("select pg_backend_pid()")[0][0], stream.consumer("c").worker_name))
    if HG is None:
        hg.close()

HG = None
if __name__ == "__main__":
    url, how = sys.argv[1:]
    context = multiprocessing.get_context(how)
    hg = headgate.connect(url)
    stream = hg.stream("orders", create=True)
    stream.consumer("c", create=True)
    stream.send({"from": -1, "i": 0})
    if how == "fork":
        HG = hg
    results = context.SimpleQueue()
    children = [context.Process(target=work, args=(n, url, results)) for n in range(8)]
    for child in children:
        child.start()
    work(8, url, results) if how == "fork" else None
    said = [results.get() for _ in range(len(children) + (how == "fork"))]
    for child in children:
        child.join()
    assert all(child.exitcode == 0 for child in children), [child.exitcode for child in children]
    print(json.dumps(said))
    hg.close()
"""

ASYNC = """
import asyncio, json, os, sys
import headgate

async def work(hg, n):
    stream = await hg.stream("orders")
    crossed, seqs = 0, []
    for i in range(25):
        seqs.append(await stream.send({"from": n, "i": i}))
        crossed += await hg.run("select %s::text", (f"{n}.{i}",)) != [(f"{n}.{i}",)]
    pid = (await hg.run("select pg_backend_pid()"))[0][0]
    return n, crossed, seqs, pid, (await stream.consumer("c")).worker_name

async def main(url):
    hg = await headgate.connect_async(url)
    stream = await hg.stream("orders", create=True)
    await stream.consumer("c", create=True)
    await stream.send({"from": -1, "i": 0})
    pipes, children = [], []
    for n in range(8):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                asyncio._set_running_loop(None)
                os.write(writing, json.dumps(asyncio.run(work(hg, n))).encode())
            finally:
                os._exit(0)
        os.close(writing)
        pipes.append(reading)
        children.append(child)
    said = [await work(hg, 8)]
    for reading in pipes:
        with open(reading) as pipe:
            said.append(json.loads(await asyncio.to_thread(pipe.read)))
    for child in children:
        os.waitpid(child, 0)
    await hg.close()
    print(json.dumps(said))

asyncio.run(main(sys.argv[1]))
"""


def judge(script: str, tmp_path: Path, *arguments: str) -> None:
    file = tmp_path / "forks.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", file, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    crossed = {n: crossed for n, crossed, *_ in said if crossed}
    assert crossed == {}
    seqs = [seq for _, _, seqs, *_ in said for seq in seqs]
    assert len(seqs) == len(set(seqs)) == 25 * len(said), "each got the seqs of its own messages"
    for what in (3, 4):
        assert len({one[what] for one in said}) == len(said), "connections and workers' names are each one's own"


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_multiprocessing(how: str, database_url: str, tmp_path: Path) -> None:
    judge(SYNC, tmp_path, database_url, how)


def test_async(database_url: str, tmp_path: Path) -> None:
    judge(ASYNC, tmp_path, database_url)


# The parent forks while a transaction is open; the child leaves both blocks, as sys.exit() does, and closes everything.
UNWINDING = """
import os, sys
import headgate
with headgate.connect(sys.argv[1]) as hg:
    stream = hg.stream("orders", create=True)
    consumer = stream.consumer("c", create=True)
    stream.send({"n": 1})
    with consumer.transaction(wait=5) as (tx, messages):
        tx.execute("create table done (n int)")
        child = os.fork()
        if child == 0:
            tx.close()
            sys.exit(0)
        os.waitpid(child, 0)
        tx.execute("insert into done values (1)")
        idle = hg.run("select pg_backend_pid()")
    assert hg.run("select n from done") == [(1,)]
    assert hg.run("select pg_backend_pid()")[0][0] in {idle[0][0], tx.info.backend_pid}
    info = consumer.info()
    print(info.lag, info.in_flight, info.redelivered)
"""


def test_a_child_that_unwinds_leaves_its_parents_connections_alone(database_url: str) -> None:
    """No protocol message of the child reaches the server on them: no rollback, no goodbye."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", UNWINDING, database_url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "0"]


EMBEDDED = """
import os, sys
import headgate
hg = headgate.connect(directory=sys.argv[1])
stream = hg.stream("orders", create=True)
reading, writing = os.pipe()
leaving, left = os.pipe()
child = os.fork()
if child == 0:
    first = stream.send("from the child")
    os.write(writing, b".")
    os.read(leaving, 1)
    print(first, stream.send("after its parent left"), flush=True)
    hg.close()
    os._exit(0)
os.read(reading, 1)
hg.close()
print(os.path.exists(sys.argv[1] + "/data/postmaster.pid"), flush=True)
os.write(left, b".")
os.waitpid(child, 0)
print(os.path.exists(sys.argv[1] + "/data/postmaster.pid"), flush=True)
"""


def test_the_embedded_server_stays_for_a_child_that_uses_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EMBEDDED, tmp_path / "hg"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "1", "2", "False"]


def test_another_event_loop_is_told_of(database_url: str) -> None:
    """A client of one asyncio.run() in the next one: at once an error that says what to do, and it can be closed."""
    hg = asyncio.run(headgate.connect_async(database_url))

    async def later() -> None:
        with pytest.raises(headgate.Error, match="another event loop\nhint: connect in the event loop that uses it"):
            await hg.streams()
        await hg.close()

    asyncio.run(later())


def test_clients_do_not_travel(hg: headgate.Headgate, orders: headgate.Stream) -> None:
    for one in (hg, orders, orders.consumer("c", create=True)):
        with pytest.raises(headgate.errors.InvalidArgument, match="hint: connect in the other process"):
            pickle.dumps(one)


PRELOADED = """
import json, os, sys
import headgate
hg = headgate.connect(os.environ["DATABASE"])
stream = hg.stream("orders", create=True)
stream.send("so that there is a connection to share")

def app(environ, start_response):
    asked = environ["QUERY_STRING"]
    answer = [stream.send(asked), hg.run("select %s::text", (asked,))[0][0], os.getpid()]
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
"""


def test_gunicorn_that_loads_before_it_forks(hg: headgate.Headgate, database_url: str, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # gunicorn takes it over
        command = [sys.executable, "-W", "ignore", "-m", "gunicorn", "--preload", "--workers", "8", "preloaded:app"]
        server = subprocess.Popen(
            [*command, "--bind", f"fd://{listening.fileno()}", "--timeout", "120", "--no-control-socket"],
            cwd=tmp_path, env={**os.environ, "DATABASE": database_url}, pass_fds=[listening.fileno()],
        )  # fmt: skip
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def ask(n: int) -> tuple[str, int, str, int]:
            seq, said, pid = httpx.get(f"{address}/?{n}", timeout=120).json()
            return str(n), seq, said, pid

        try:
            with ThreadPoolExecutor(16) as threads:
                answers = list(threads.map(ask, range(400)))
        finally:
            server.terminate()
            server.wait(60)
    sent = {m.seq: m.data for m in hg.stream("orders").messages(1000)}
    assert [n for n, seq, said, _ in answers if said != n or sent[seq] != n] == []
    assert len({seq for _, seq, _, _ in answers}) == 400
    assert len({pid for *_, pid in answers}) > 1
