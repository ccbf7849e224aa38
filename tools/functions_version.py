"""Raises the version of the SQL functions when they have changed: src/headgate/sql/functions_version.txt.

The file has the version and the digest of the functions that it is the version of. A database keeps functions of a
higher version, so the number only grows. After a merge with conflicts in that file the highest number counts.
`--check` exits 1 when the version has to be raised.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from headgate.database import schema

FILE = Path(__file__).resolve().parent.parent / "src" / "headgate" / "sql" / "functions_version.txt"


def raised(recorded: str, digest: str) -> str:
    """What the file has to say, given what it says."""
    if re.fullmatch(rf"\d+ {digest}\n", recorded):
        return recorded
    versions = [int(number) for number in re.findall(r"^(\d+) [0-9a-f]{16}$", recorded, re.MULTILINE)]
    return f"{max(versions, default=0) + 1} {digest}\n"


def main() -> int:
    """Write the file, or check it."""
    recorded = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    wanted = raised(recorded, schema.digest())
    if wanted == recorded:
        return 0
    if "--check" in sys.argv[1:]:
        print("the SQL functions have changed: run tools/functions_version.py", file=sys.stderr)
        return 1
    FILE.write_text(wanted, encoding="utf-8")
    print(f"{FILE.name}: {wanted.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
