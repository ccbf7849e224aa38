"""`make run` installs what running needs, and says what it does; the other targets install everything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def steps(clone: Path, target: str) -> str:
    """What make would do."""
    return subprocess.check_output(["make", "--no-print-directory", "-n", target], cwd=clone, text=True)


def test_running_installs_what_running_needs(clone: Path) -> None:
    told = steps(clone, "run")
    assert "-e '.[server,observe]'" in told
    assert "dev" not in told
    assert "--quiet" not in told
    assert "echo" in told
    for target in ("test", "lint", "docs", "bench"):
        assert "-e '.[dev,bench]'" in steps(clone, target)


def test_what_is_installed_is_not_installed_again(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".runnable").touch()
    assert "pip" not in steps(clone, "run")
    assert "-e '.[dev,bench]'" in steps(clone, "test")
    (clone / ".venv" / ".installed").touch()
    assert "pip" not in steps(clone, "run") + steps(clone, "test")
    later = (clone / "Makefile").stat().st_mtime + 3600
    os.utime(clone / "pyproject.toml", (later, later))
    assert "-e '.[server,observe]'" in steps(clone, "run")
    assert "-e '.[dev,bench]'" in steps(clone, "test")
