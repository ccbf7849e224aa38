"""`headgate worker`: a worker of a module of the user's, found and run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import headgate
from support.command_line import CommandLine
from support.waiting import wait_until

MODULE = """
import os
import headgate

URL = os.environ["HEADGATE_DATABASE_URL"]

def handle(m):
    print("handled", m.data, flush=True)

def make():
    return headgate.connect(URL).stream("orders").consumer("billing").worker(handle)

async def make_async():
    hg = await headgate.connect_async(URL)
    return (await (await hg.stream("orders")).consumer("billing")).worker(handle)

async def make_nothing():
    return 5

number = 5
"""
AT_ONCE = """
worker = make()
"""
RUNS_ITSELF = """
worker = make()
worker.run()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("more", "name"), [(AT_ONCE, "worker"), ("", "make"), ("", "make_async"), (RUNS_ITSELF, "worker")], ids=str
)
def test_it_handles_messages_until_it_is_stopped(run: CommandLine, hg: headgate.Headgate, more: str, name: str) -> None:
    orders = hg.stream("orders", create=True)
    billing = orders.consumer("billing", create=True)
    orders.send_batch(["a", "b"])
    Path("shop_work.py").write_text(MODULE + more)
    run.environment["HEADGATE_DATABASE_URL"] = "postgresql://elsewhere/db"
    with run.start(
        "worker", f"shop_work:{name}", "--database", hg.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until(lambda: billing.info().lag == 0, 60)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    *handled, last = out.splitlines()
    assert sorted(handled) == ["handled a", "handled b"]
    assert last == "acked 2, failed 0, handed back 0, lost 0"
    assert "worker started: orders/billing" in err


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("shop_work", 2, "is not MODULE:NAME"),
        ("no_such:worker", 1, "there is no module 'no_such'\nhint: run this where it lies"),
        ("shop_work:wroker", 1, "has no 'wroker'\nhint: did you mean worker? NAME is what @consumer.worker made"),
        ("shop_work:number", 1, "is no worker, but a int\nhint: name what @consumer.worker made"),
        ("shop_work:make_nothing", 1, "what shop_work:make_nothing() returns is no worker, but a int"),
    ],
)
def test_what_is_none(run: CommandLine, hg: headgate.Headgate, target: str, code: int, said: str) -> None:
    hg.stream("orders", create=True).consumer("billing", create=True)
    Path("shop_work.py").write_text(MODULE + AT_ONCE)
    with run.start("worker", target, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
