"""The reference of SQL, docs/sql.md, from the headers of the functions and the definitions of the views."""

from __future__ import annotations

import re
from pathlib import Path

SQL = Path(__file__).resolve().parent.parent / "src" / "headgate" / "sql"

HEAD = """\
# SQL reference

<!-- Generated from the headers of src/headgate/sql/functions/*/*.sql by `make docs`: do not edit. -->

Functions and views of schema `headgate` are the interface; its tables are private. Every function can be called
from any client, inside any transaction. Errors have an SQLSTATE of class `HG` and a hint: [errors](errors.md).
`"order"` is a reserved word of SQL: quote it.

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
    """The public functions, by the role that may call them: what rights.sql grants."""
    text = (SQL / "rights.sql").read_text(encoding="utf-8")
    found = {}
    for role, names in re.findall(r"\(\s*'(headgate_\w+)',\s*array\[(.*?)\]", text, re.DOTALL):
        found[role] = re.findall(r"'(\w+)'", names)
    return found


def headers() -> dict[str, tuple[str, str]]:
    """For each function: the comment above it, and its signature."""
    found: dict[str, tuple[str, str]] = {}
    pattern = re.compile(
        r"((?:^--[^\n]*\n)+)create or replace function headgate\.(\w+)\s*\((.*?)\)\s*\n?\s*(?:returns|language)",
        re.DOTALL | re.MULTILINE,
    )
    for file in sorted(SQL.glob("functions/*/*.sql")):
        for comment, name, arguments in pattern.findall(file.read_text(encoding="utf-8")):
            found[name] = (_prose(comment), re.sub(r"\s+", " ", arguments).strip())
    return found


def views() -> dict[str, tuple[str, list[str]]]:
    """Of each view that others may read: what a row is, and its columns."""
    text = (SQL / "views.sql").read_text(encoding="utf-8")
    found = {}
    pattern = r"^create view headgate\.(\w+) as\n((?:--[^\n]*\n)+)select (.*?);$"
    for name, comment, rest in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        if not comment.startswith("-- Private:"):
            found[name] = (_prose(comment), _columns(rest))
    return found


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
            parts.append(f"\n### {name}\n\n```sql\nheadgate.{name}({arguments})\n```\n\n{_literal(prose)}\n")
    parts.append("\n## Views\n\nFor members of `headgate_monitor`.\n")
    for name, (what, columns) in views().items():
        parts.append(f"\n### headgate.{name}\n\n{what}\n\nColumns: {', '.join(f'`{c}`' for c in columns)}.\n")
    parts.append(
        "\n### headgate.log_&lt;stream&gt;\n\nEach stream has a view of its messages, whoever has read them: "
        "`headgate.log_orders` for the stream `orders`.\n\nColumns: `seq`, `key`, `data`, `headers`, `lane`, "
        "`deliver_at`, `created_at`; with lanes by channel also `channel`.\n"
    )
    return "".join(parts)


def _prose(comment: str) -> str:
    return " ".join(line.removeprefix("--").strip() for line in comment.strip().splitlines())


def _literal(prose: str) -> str:
    """Prose of a comment in which `<`, `*` and `[` mean themselves."""
    parts = prose.split("`")
    parts[::2] = [re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _columns(select: str) -> list[str]:
    """The names in a select list: what stands after `as`, or after the last dot."""
    depth, item, items = 0, "", []
    for word in re.split(r"(\bfrom\b|[(),])", select):
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0 and word == "from":
            break
        if depth == 0 and word == ",":
            items.append(item)
            item = ""
        else:
            item += word
    items.append(item)
    return [re.split(r"[\s.]", item.strip())[-1].strip('"') for item in items]
