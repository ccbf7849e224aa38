"""The programs that newcomers copy pass a strict type checker: the README's tour, the tutorial, the Python guide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.session import blocks
from docs.test_readme import tour

ROOT = Path(__file__).parent.parent.parent


def programs() -> dict[str, str]:
    found = {"tour": tour()}
    for name in ("tutorial", "guides/python"):
        python = [b for b in blocks(ROOT / f"docs/{name}.md") if b.kind == "python"]
        begin = "" if name == "tutorial" else "import headgate\n\nhg = headgate.connect()\n"
        found[name.replace("/", "_")] = begin + "\n".join(b.code for b in python if not b.title)
        found |= {f"{Path(b.title).stem}_of_{name.replace('/', '_')}": b.code for b in python if b.title}
    return found


def test_strict(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    for name, code in programs().items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path / "cache", "."],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
