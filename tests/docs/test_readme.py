"""The tour in README.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"


def tour() -> str:
    """The python block behind the marker."""
    found = re.search(
        r"<!-- tour -->\s*```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found, "README.md has no python block behind the marker <!-- tour -->"
    return found.group(1)


def test_the_tour(tmp_path: Path) -> None:
    """In an empty directory, in a process of its own, which ends by itself and leaves only .headgate behind."""
    script = tour()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HEADGATE_", "PG"))}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [".headgate"]
    # what a print's comment promises is what it prints
    promised = re.findall(r"^ *print\(.*\)  # (.+)$", script, re.MULTILINE)
    printed = done.stdout.splitlines()
    for line in promised:
        assert line in printed, f"README promises {line!r}, printed was {done.stdout!r}"
