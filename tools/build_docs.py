"""Writes the reference from the program: docs/sql.md from the headers of SQL functions, docs/cli.md from the commands,
docs/pipeline.schema.json from the kinds of pipelines.

`--check` exits 1 when a file is not what the program says.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import cli_reference
from headgate.pipeline import spec

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = ROOT / "src" / "headgate" / "sql" / "functions"
DOCS = ROOT / "docs"

HEAD = """\
# SQL reference

Generated from the headers of `src/headgate/sql/functions/*.sql` by `make docs`: do not edit.

Functions and views of schema `headgate` are the interface; its tables are private. Every function can be called from
any client, inside any transaction. Errors have an SQLSTATE of class `HG` and a hint. `"order"` is a reserved word of
SQL: quote it.

The consumer loop: call `receive` with the ack_ids of the messages that you have finished; work on what it returns; call
it again. Call `nack` for a message that failed, `extend` for one that takes longer than the consumer's `ack_wait`.
"""

ROLES = {
    "headgate_producer": "Sending",
    "headgate_consumer": "Receiving and settling",
    "headgate_monitor": "Looking",
    "headgate_owner": "Administration",
}


def granted() -> dict[str, list[str]]:
    """The public functions, by the role that may call them: what 99_rights.sql grants."""
    text = (FUNCTIONS / "99_rights.sql").read_text(encoding="utf-8")
    found = {}
    for role, names in re.findall(r"\('(headgate_\w+)', array\[(.*?)\]", text, re.DOTALL):
        found[role] = re.findall(r"'(\w+)'", names)
    return found


def headers() -> dict[str, tuple[str, str]]:
    """For each function: the comment above it, and its signature."""
    found: dict[str, tuple[str, str]] = {}
    pattern = re.compile(
        r"((?:^--[^\n]*\n)+)create or replace function headgate\.(\w+)\s*\((.*?)\)\s*\n?\s*(?:returns|language)",
        re.DOTALL | re.MULTILINE,
    )
    for file in sorted(FUNCTIONS.glob("*.sql")):
        for comment, name, arguments in pattern.findall(file.read_text(encoding="utf-8")):
            prose = " ".join(line.removeprefix("--").strip() for line in comment.strip().splitlines())
            found[name] = (prose, re.sub(r"\s+", " ", arguments).strip())
    return found


def views() -> list[tuple[str, str]]:
    """The views and their columns' text, from 80_views.sql."""
    text = (FUNCTIONS / "80_views.sql").read_text(encoding="utf-8")
    return re.findall(r"create view headgate\.(\w+) as\n-- ([^\n]+)\n", text)


def page() -> str:
    """The reference."""
    known = headers()
    parts = [HEAD]
    seen: set[str] = set()
    for role, title in ROLES.items():
        parts.append(
            f"\n## {title}\n\nFor members of `{role}`"
            + (", who are also members of the other three." if role == "headgate_owner" else ".")
            + "\n"
        )
        for name in granted()[role]:
            if name in seen or name not in known:
                continue
            seen.add(name)
            prose, arguments = known[name]
            parts.append(f"\n### {name}\n\n```sql\nheadgate.{name}({arguments})\n```\n\n{prose}\n")
    parts.append(
        "\n## Views\n\nFor members of `headgate_monitor`. "
        "Each stream also has a view `headgate.log_<stream>` of its messages."
        "\n\n| view | a row is |\n|---|---|\n"
    )
    parts.extend(f"| `headgate.{name}` | {what} |\n" for name, what in views())
    return "".join(parts)


def pipeline_schema() -> str:
    """The JSON schema of pipelines."""
    return json.dumps(spec.schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes or checks the pages."""
    outdated = 0
    pages = {"sql.md": page(), "cli.md": cli_reference.page(), "pipeline.schema.json": pipeline_schema()}
    for name, text in pages.items():
        target = DOCS / name
        if "--check" not in sys.argv[1:]:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"docs/{target.name} is out of date: run `make docs`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
