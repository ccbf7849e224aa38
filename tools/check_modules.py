"""Holds the modules of src to two rules, of size and of names: `make lint` runs it.

- No module has more than 400 lines: one that does has two ideas in it.
- No public class has the name of one in another package, unless both mean the same: a reader would take one for the
  other. (The sync client is generated from the async one, and has its names.)
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
MOST_LINES = 400

# What travels over HTTP is called alike at both of its ends, and as the SDK calls it.
WIRE = {"headgate.http", "headgate.server", "headgate.types", "headgate.tokens"}

# Other names that two packages share: the server's are what it says of the thing that the other package has.
SHARED = {"Archive", "Backfill", "Message", "Pipeline", "Route", "Snapshot", "Worker"}
# The same name for different things, and waiting for another one. Take out what is done; add nothing.
DOUBLE = {"Ask", "Call", "Queue"}


def modules() -> list[Path]:
    """The modules that are written by hand."""
    return sorted(p for p in SOURCES.rglob("*.py") if "sync" not in p.relative_to(SOURCES).parts)


def package(path: Path) -> str:
    """The room of a module: headgate.worker, or headgate.service for a module beside the rooms."""
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts[:2])


def classes(path: Path) -> list[str]:
    """The public classes of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [n.name for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]


def main() -> int:
    """Says what breaks a rule."""
    wrong = []
    for path in modules():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MOST_LINES:
            wrong.append(f"{path.relative_to(ROOT)} has {lines} lines, more than {MOST_LINES}: split it")
    homes: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for name in classes(path):
            homes[name].add(package(path))
    for name, where in sorted(homes.items()):
        if len(where) > 1 and not where <= WIRE and name not in SHARED | DOUBLE:
            wrong.append(f"{name} is a class in {', '.join(sorted(where))}: call one of them by what it is")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
