"""`headgate observe --once`: for scripts, over a database and over HTTP, without anything that draws."""

from __future__ import annotations

import subprocess
import sys

import headgate
from headgate.observe.looking import look
from support.command_line import CommandLine

WITHOUT = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from headgate.cli import main
sys.exit(main(sys.argv[2:]))
"""


def test_as_json(shop: headgate.Headgate, run: CommandLine) -> None:
    found = run("observe", "--once", "--json").json
    assert found["totals"]["dead"] == 3
    assert found["totals"]["parked"] == 1
    assert [(c["stream"], c["consumer"], c["trouble"]) for c in found["consumers"]] == [
        ("orders", "billing", "dead"), ("orders", "paused", "paused"),
        ("payments", "ledger", "fine"), ("clicks", "analytics", "fine"),
    ]  # fmt: skip
    assert {s["stream"]: s["messages"] for s in found["streams"]}["orders"] == 6


def test_as_text(shop: headgate.Headgate, run: CommandLine) -> None:
    totals, heads, *lines = run("observe", "--once").out.splitlines()
    assert totals.startswith("sent ")
    assert totals.endswith("in flight 0  parked 1  dead 3")
    assert heads.split()[:3] == ["TROUBLE", "STREAM/CONSUMER", "LAG"]
    assert [line.split()[:3] for line in lines] == [
        ["dead", "orders/billing", "3"], ["paused", "orders/paused", "6"], ["fine", "payments/ledger", "3"],
        ["fine", "clicks/analytics", "0"],
    ]  # fmt: skip
    assert len(run("observe", "--once", "--search", "LED").out.splitlines()) == 3
    assert "clicks/analytics" in run("observe", "--once", "--sort", "name").out.splitlines()[2]


def test_a_look_over_http_is_the_same(shop: headgate.Headgate, remote: headgate.Headgate) -> None:
    for sort in ("trouble", "name", "lag", "dead"):
        near, far = look(shop, sort), look(remote, sort)
        assert [line.name for line in far.lines] == [line.name for line in near.lines]
        assert [line.trouble for line in far.lines] == [line.trouble for line in near.lines]
        assert [s.name for s in far.streams] == [s.name for s in near.streams]
        assert {n: far.totals[n] for n in ("lag", "parked", "dead")} == {
            n: near.totals[n] for n in ("lag", "parked", "dead")
        }
    assert [line.name for line in look(remote, search="led").lines] == [("payments", "ledger")]


def test_of_many_the_first_are_shown(shop: headgate.Headgate, remote: headgate.Headgate) -> None:
    for hg in (shop, remote):
        some = look(hg, "name", most=2)
        assert (len(some.lines), some.lines_found) == (2, 4)
        assert (len(some.streams), some.streams_found) == (2, 4)
        assert some.totals["dead"] == 3


def test_all_are_listed_however_many_an_answer_has(remote: headgate.Headgate, monkeypatch: object) -> None:
    import headgate.observe.looking as looking

    monkeypatch.setattr(looking, "MOST_ASKED", 3)  # type: ignore[attr-defined]
    assert len(look(remote, "name", most=None).lines) == 4
    assert len(look(remote, "name", most=None).streams) == 4


def without(modules: str, run: CommandLine, *args: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", WITHOUT, modules, *args], env={**os.environ, **run.environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_what_is_missing_is_said(shop: headgate.Headgate, run: CommandLine) -> None:
    found = without("textual", run, "observe")
    assert found.returncode == 1
    assert found.stderr == "error: observe needs textual\nhint: pip install 'headgate[observe]'\n"
    assert "orders/billing" in without("textual,rich", run, "observe", "--once").stdout


def test_without_a_terminal(shop: headgate.Headgate, run: CommandLine) -> None:
    found = run("observe")
    assert found.code == 2
    assert "--once" in found.err
