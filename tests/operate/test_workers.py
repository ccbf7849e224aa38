"""The tests are shared out to workers as tests/support/workers.py says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

HERE = Path(__file__).parent.parent

NOTED = """
import os, time
import pytest

@pytest.fixture(autouse=True)
def noted(request):
    began = time.monotonic()
    yield
    with open({notes!r}, "a") as notes:
        print(os.environ["PYTEST_XDIST_WORKER"], request.node.nodeid, began, time.monotonic(), file=notes)

@pytest.mark.parametrize("n", range(8))
def test_some(n):
    time.sleep(0.01)

@pytest.mark.alone
def test_quiet():
    time.sleep(0.3)
"""

KILLED = """
import os, signal

def test_before():
    pass

def test_killed(cluster):
    with open({notes!r}, "w") as notes:
        print(cluster.pid, file=notes)
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


def run(directory: Path, workers: int) -> str:
    """What pytest says about the tests in `directory`, with the conftest.py of these."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(workers), "-p", "conftest", "-o", "markers=alone", "-o",
         f"pythonpath={HERE}", "-c", os.devnull, "--rootdir", directory, "-p", "no:cacheprovider", directory],
        cwd=directory, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_worker_has_whole_files_and_what_is_alone_the_machine(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (tmp_path / "spark").mkdir()
    files = ["test_a.py", "test_b.py", "test_c.py", "spark/test_d.py", "spark/test_e.py"]
    for file in files:
        (tmp_path / file).write_text(NOTED.format(notes=str(notes)))
    said = run(tmp_path, 3)
    assert "45 passed" in said, said
    ran = [(who, test, float(a), float(b)) for who, test, a, b in map(str.split, notes.read_text().splitlines())]
    for place in ("test_a.py", "test_b.py", "test_c.py", "spark/"):
        assert len({who for who, test, _, _ in ran if test.startswith(place) and "quiet" not in test}) == 1, place
    quiet = [one for one in ran if "quiet" in one[1]]
    assert len(quiet) == len(files)
    for one in quiet:
        assert [other for other in ran if other[2] < one[3] and one[2] < other[3]] == [one], "nothing runs beside it"


def test_a_worker_that_dies_is_one_failure_and_leaves_no_postgresql(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (tmp_path / "test_a.py").write_text(KILLED.format(notes=str(notes)))
    said = run(tmp_path, 1)
    assert "1 failed, 2 passed" in said, said
    gone = int(notes.read_text())
    assert not psutil.pid_exists(gone) or psutil.Process(gone).status() == psutil.STATUS_ZOMBIE
