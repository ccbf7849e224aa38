"""The plans of the statements that a call runs, also inside functions, as PostgreSQL ran them: with auto_explain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

Db = psycopg.Connection[Any]


@dataclass(frozen=True)
class Node:
    """A node of a plan that ran."""

    kind: str
    relation: str | None
    index: str | None
    rows: float  # in all loops
    removed: float  # rows that a filter threw away, in all loops
    raw: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind} on {self.relation} using {self.index} ({self.rows:g} rows)"


@dataclass(frozen=True)
class Statement:
    """A statement that ran, with its plan."""

    query: str
    nodes: list[Node]
    buffers: int  # pages that were read, from memory or not

    def on(self, prefix: str) -> list[Node]:
        """The nodes that read tables whose names begin so; those that never ran are not among them."""
        return [n for n in self.nodes if (n.relation or "").startswith(prefix)]


class Explained:
    """A session of the superuser whose statements are explained."""

    def __init__(self, db: Db) -> None:
        self.db = db
        self._notices: list[str] = []
        db.add_notice_handler(lambda notice: self._notices.append(notice.message_primary or ""))
        db.execute("load 'auto_explain'")
        for name, value in {
            "log_min_duration": "0", "log_nested_statements": "on", "log_level": "notice", "log_format": "json",
            "log_analyze": "on", "log_buffers": "on", "log_timing": "off", "log_verbose": "on",
        }.items():  # fmt: skip
            db.execute(f"set auto_explain.{name} = {value}")

    def run(self, query: str, *params: object) -> tuple[list[tuple[Any, ...]], list[Statement]]:
        """The rows of a query and the statements that it ran, itself last."""
        self._notices.clear()
        rows = self.db.execute(query, params).fetchall()
        found = []
        for notice in self._notices:
            head, _, plan = notice.partition("plan:\n")
            if head.startswith("duration:"):
                explained = json.loads(plan)
                top = explained["Plan"]
                pages = top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0)
                found.append(Statement(explained["Query Text"], list(_nodes(top)), pages))
        assert found
        return rows, found


def _nodes(plan: dict[str, Any]) -> Iterator[Node]:
    loops = plan.get("Actual Loops", 1)
    if loops:
        yield Node(
            plan["Node Type"], plan.get("Relation Name"), plan.get("Index Name"), plan.get("Actual Rows", 0) * loops,
            plan.get("Rows Removed by Filter", 0) * loops, plan,
        )  # fmt: skip
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
