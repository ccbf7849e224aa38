"""How much is loaded before a command begins: counted in modules, since times say little on a machine at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import headgate
from headgate.cli import streams
from headgate.cli.app import MODULES, app
from headgate.types import LaneBy, Retain
from support.command_line import CommandLine

HEAVY = {"psycopg", "psycopg_pool", "asyncio", "uvicorn", "uvloop", "psutil", "pyspark", "pyarrow", "ssl", "sqlite3"}
OURS = {"headgate.aio", "headgate.worker", "headgate.server", "headgate.pipeline", "headgate.spark", "headgate.bench"}

SCRIPT = """
import json, sys
from headgate.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*args: str, **environment: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the modules that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--version", 0), ("--help", 0), ("stream --help", 0), ("up --help", 0), ("completion bash", 0),
        ("nonsense", 2), ("stream show", 2), ("stream show orders --as-curl", 0), ("context list", 0),
    ],
)  # fmt: skip
def test_what_needs_no_database_loads_no_driver(run: CommandLine, command: str, code: int) -> None:
    ended, modules = loaded(*command.split(), **run.environment)
    assert ended == code
    assert modules & (HEAVY | OURS) == set()
    assert len(modules) < 190, len(modules)


@pytest.mark.parametrize("command", ["stream list", "stream show orders", "send orders x", "doctor"])
def test_a_command_loads_the_sync_client_alone(run: CommandLine, orders: headgate.Stream, command: str) -> None:
    ended, modules = loaded(*command.split(), **run.environment)
    assert ended in (0, 1)  # the doctor may find something
    assert modules & (OURS | {"uvicorn", "uvloop", "psutil", "pyspark", "pyarrow"}) == set()
    commands = {m for m in modules if m.startswith("headgate.cli.") and m.rpartition(".")[2] in MODULES}
    assert len(commands) == 1


def test_import_headgate_loads_what_is_used() -> None:
    script = "import sys, headgate; headgate.Error, headgate.errors.StreamNotFound; print('psycopg' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
    with pytest.raises(AttributeError, match="has no attribute 'Hedgate'"):
        headgate.Hedgate  # noqa: B018
    assert set(headgate.__all__) <= set(dir(headgate))


def test_every_command_is_found_by_its_module() -> None:
    assert set(app.load().commands) == {name for names in MODULES.values() for name in names}
    for name, command in app.commands.items():
        home = getattr(command.callback, "__wrapped__", command.callback)
        assert name in MODULES[home.__module__.rpartition(".")[2]]


def test_choices_are_those_of_the_types() -> None:
    assert tuple(streams.LANE_BY.choices) == LaneBy.__args__  # type: ignore[attr-defined]
    assert tuple(streams.RETAIN.choices) == Retain.__args__  # type: ignore[attr-defined]


def test_python_m_headgate() -> None:
    for module in ("headgate", "headgate.cli"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"headgate {headgate.__version__}\n"
