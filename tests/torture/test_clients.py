"""Processes of their own beside the sessions of `headgate torture`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from headgate.torture.clients import processes
from headgate.torture.clients.processes import ClientProcess, ClientProcesses
from headgate.torture.command import unknown
from headgate.torture.environment.server import Environments, temporary_server
from headgate.torture.judge.check import judge
from headgate.torture.presets.catalogue import PRESETS
from headgate.torture.presets.preset import set_up
from headgate.torture.record import LOST, Fault, History
from headgate.torture.report.explain import explain_all
from headgate.torture.run import run

TRIES = 4  # histories with liars: on a busy machine one of them may be short


@pytest.fixture(scope="module")
def environments(bin_dir: Path) -> Iterator[Environments]:
    with temporary_server(bin_dir) as found:
        yield found


def test_mixed(environments: Environments) -> None:
    """Sessions, the SDK, its worker and HTTP on one stream, and some of them are killed."""
    preset = replace(PRESETS["mixed"], fault_every=0.3)
    with environments(preset) as environment:
        history = run(environment, preset, 3, 3)
    findings = judge(history, preset)
    assert not findings, explain_all(history, preset, findings)
    for kind in ("worker", "sdk", "loop", "http"):
        mine = [e for e in history.events if e.session.startswith(kind)]
        assert any(e.kind == "receive" and e.answer for e in mine), kind
        assert all(e.called < e.answered < history.drained_at + processes.GRACE for e in mine)
    assert {f.kind for f in history.faults} & {"kill", "stop"}


def test_a_lie_is_found(environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MODULE", "torture.lying_client")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    preset = replace(PRESETS["sdk"], clients={"sdk": 2}, faults={})
    found: set[str] = set()
    for seed in range(1, TRIES + 1):
        with environments(preset) as environment:
            found |= {f.check for f in judge(run(environment, preset, seed, 2), preset)}
        if found >= {"lost", "delivered after its ack"}:
            return
    pytest.fail(f"only {found}")


def test_what_is_killed_goes_on(environments: Environments) -> None:
    """The HTTP server on the same port, so that its callers go on; a process under another name."""
    history = History("http", 1)
    with environments(PRESETS["http"]) as environment:
        with processes.psycopg.connect(environment.url, autocommit=True) as db:
            set_up(db, PRESETS["http"])
        with ClientProcesses(
            environment.url, replace(PRESETS["http"], clients={"http": 1}), history
        ).at_work() as found:
            assert found.server is not None
            before = found.server.port
            (first,) = found.running
            wait_for_a_receive(found, first, after=0)  # it is connected now, and notices
            start = history.now()
            found.kill_server()
            history.faults.append(Fault("kill_server", start, history.now()))
            assert found.server.port == before
            wait_for_a_receive(found, first, after=history.now())
            found.kill()
            (second,) = found.running
            assert second.name != first.name
            assert found.over == [first]
            wait_for_a_receive(found, second, after=history.now())
    cut = [e for e in history.events if e.unknown]
    assert any(e.called < history.faults[0].end <= e.answered for e in cut)  # by the server's end
    assert {e.session for e in history.events} == {first.name, second.name}


@pytest.mark.parametrize("kind", ["sdk", "http"])
def test_powers(environments: Environments, kind: str) -> None:
    """A process discards and replays what it has met; a session that discards is written down in the same way."""
    history = History(kind, 1)
    preset = replace(PRESETS[kind], clients={kind: 1}, powers=0.5)
    with environments(preset) as environment:
        with processes.psycopg.connect(environment.url, autocommit=True) as db:
            set_up(db, preset)
        with ClientProcesses(environment.url, preset, history).at_work() as found:
            (client,) = found.running
            patience = time.monotonic() + 120
            answers: dict[str, object] = {}
            while not answers.keys() >= {"discard", "replay"}:
                assert time.monotonic() < patience
                time.sleep(0.05)
                answers = {e.kind: e.answer for e in found.read(client) if not e.problem}
    assert isinstance(answers["discard"], int | tuple)
    assert isinstance(answers["replay"], int)


def wait_for_a_receive(found: ClientProcesses, client: ClientProcess, after: float) -> None:
    patience = time.monotonic() + 20
    while not any(e.called > after and e.kind == "receive" and not e.problem for e in found.read(client)):
        assert time.monotonic() < patience
        time.sleep(0.05)


def test_what_was_asked_without_an_answer(tmp_path: Path) -> None:
    history = History("sdk", 1)
    began = time.monotonic() - history.now()
    log = tmp_path / "sdk0.log"
    lines = [
        [0, "ready", began],
        [1, "asked", began + 1, "receive", "free", {"n": 1, "acks": [], "open": False}],
        [1, "answered", began + 2, [["0.1.7", 7, None, "x", 1]], None],
        [2, "asked", began + 3, "ack", "free", {"acks": ["0.1.7"], "open": False}],
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        client = ClientProcess("sdk", "sdk0", log, process, gone=5.0)
    receive, ack = ClientProcesses("", PRESETS["sdk"], history).read(client)
    assert receive.happened
    assert (receive.called, receive.answered) == pytest.approx((1, 2), abs=1e-3)
    assert receive.seqs == [7]
    assert ack.unknown
    assert ack.problem is not None
    assert ack.problem.state == LOST
    assert ack.answered == 5.0


def test_a_clock_that_jumps() -> None:
    """Where the SDK asks for the time of day it is told a wrong one; what waits does so by another clock."""
    text = (
        "import time; right = time.time; from headgate.torture.clients.client import jump;"
        "import headgate.sync.consumer as c;"
        "jump('x'); print(max(abs(c.time_ns() / 1e9 - right()) for _ in range(200)), time.monotonic is c.monotonic)"
    )
    answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
    assert float(answer[0]) > 80_000
    assert answer[1] == "True"


def test_what_the_server_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_uvicorn(name: str) -> ModuleSpec | None:
        return None if name == "uvicorn" else ModuleSpec(name, None)

    monkeypatch.setattr(processes, "find_spec", without_uvicorn)
    assert unknown(["sdk"], False, False) is None
    assert "pip install 'headgate[server]'" in (unknown(["sdk", "http"], False, False) or "")
