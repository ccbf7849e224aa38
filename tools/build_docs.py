"""Writes the reference in docs/ from the program: SQL, Python, HTTP, command line, settings, errors, pipelines.

`--check` exits 1 when a page is not what the program says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import cli_reference
import errors_reference
import http_reference
import python_reference
import settings_reference
import sql_reference
import torture_example
from headgate.pipeline import spec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "sql.md": sql_reference.page,
    "python.md": python_reference.page,
    "http.md": http_reference.page,
    "cli.md": cli_reference.page,
    "settings.md": settings_reference.page,
    "errors.md": errors_reference.page,
    "pictures/torture.svg": torture_example.page,
    "pipeline.schema.json": lambda: json.dumps(spec.schema(), indent=2, ensure_ascii=False) + "\n",
}


def main() -> int:
    """Writes or checks the pages."""
    outdated = 0
    for name, page in PAGES.items():
        target, text = DOCS / name, page()
        if "--check" not in sys.argv[1:]:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"docs/{name} is out of date: run `make docs`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
