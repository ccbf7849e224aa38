"""docs/glossary.md against the names in the program: the domain's words are in it, retired words do not come back."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import headgate
import headgate.types

ROOT = Path(__file__).parent.parent.parent
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
SNAPSHOT = (ROOT / "tests/engine/schema_snapshot.txt").read_text(encoding="utf-8")
SOURCES = ROOT / "src/headgate"

# Words that everybody knows, or that PostgreSQL, Python and HTTP gave: they need no entry.
PLAIN = set(
    re.findall(
        r"\w+",
        """
        async audit backlog by check cluster connect count digest dropped error event facts full functions headgate
        history id identity info install kind last later letter life limit migration modified move named newest next
        offered order outgoing owner page peek peeked postgres problem progress retain retry run scheme settings
        severity sort sql state stored table tables text timing version writer
        """,
    )
)

# Words that stood for something else here, each with what is said instead.
RETIRED = {
    "house": "cluster_identity", "reborn": "bridge_to", "sift": "read_filtered", "sweep": "expire_…_lanes",
    "bury": "append_dead_letters", "upkeep": "maintenance_run", "hands": "clients", "notbegun": "NotStarted",
    "stirred": "may_have_work", "scout": "probe", "company": "last_group_size", "crew": "processes",
    "told": "with_plain_credentials", "tend": "maintain_until", "lookers": "observers", "looker": "observer",
    "ground": "environment", "grounds": "environments", "story": "explanation", "tale": "draft", "traps": "unusual_…",
    "doors": "connection_limit", "talk": "print_status", "exits": "exit_codes",
    "moments": "times", "minder": "watch loop",
}  # fmt: skip

# Names that still have a retired word, and wait for the rename of their room. Take out what is done; add nothing.
WAITING: set[str] = set()


def words(name: str) -> list[str]:
    """`AsyncConsumer` and `async_consumer` are async and consumer."""
    return [w for w in re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_") if w and not w.isdigit()]


def entries() -> list[str]:
    """The words that the glossary explains."""
    return re.findall(r"^\| ([a-z][a-z ]*) \|", re.sub(r"^\| (word|state) \|.*$", "", GLOSSARY, flags=re.MULTILINE),
                      re.MULTILINE)  # fmt: skip


def is_explained(word: str, known: set[str]) -> bool:
    """Also in the plural, and as a verb's form: consumers, archived, leased."""
    stems = {word, word.removesuffix("s"), word.removesuffix("ies") + "y", word.removesuffix("es")}
    stems |= {word.removesuffix("ed"), word.removesuffix("d"), word.removesuffix("ing")}
    return bool(stems & known)


def tables() -> Iterator[tuple[str, list[str]]]:
    """Each table of the engine, with its columns."""
    name, columns = "", []
    for line in SNAPSHOT.split("== tables and their columns\n")[1].split("\n== ")[0].splitlines():
        if line.startswith("    "):
            columns.append(line.split()[0].strip('"'))
        elif line:
            if name:
                yield name, columns
            name, columns = line.split()[0], []
    yield name, columns


def names_of_sql() -> Iterator[str]:
    for table, columns in tables():
        yield table
        yield from columns
    for file in (SOURCES / "sql").rglob("*.sql"):
        if "migrations" not in file.parts:
            text = file.read_text(encoding="utf-8")
            yield from re.findall(r"create (?:or replace )?(?:function|view) headgate\.(\w+)", text)


def names_of_python() -> Iterator[str]:
    for file in SOURCES.rglob("*.py"):
        yield file.stem
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name


def test_each_word_has_one_meaning() -> None:
    assert len(entries()) > 50
    assert [word for word, n in Counter(entries()).items() if n > 1] == []


def test_words_of_the_domain_are_explained() -> None:
    known = {part for entry in entries() for part in entry.split()} | PLAIN
    offered = {*(name for name, _ in tables()), *headgate.__all__, *headgate.types.__all__}
    offered |= set(re.findall(r"create (?:or replace )?view headgate\.(\w+)", (SOURCES / "sql/views.sql").read_text()))
    unknown = {w: name for name in offered for w in words(name) if not is_explained(w, known)}
    assert unknown == {}, "explain them in docs/glossary.md, or call them by a word that is there"


@pytest.mark.parametrize("names", [names_of_sql, names_of_python])
def test_retired_words_do_not_come_back(names: object) -> None:
    assert callable(names)
    back = {name: RETIRED[w] for name in set(names()) for w in words(name) if w in RETIRED}
    assert back == {}, "say what stands beside them"


def test_nothing_waits_that_is_done() -> None:
    assert {*names_of_sql(), *names_of_python()} >= WAITING


def test_the_states_are_the_same_everywhere() -> None:
    """In the diagram, the glossary, the SDK, the command line and the engine."""
    states = set(get_args(headgate.types.State))
    picture = (ROOT / "docs/pictures/states.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'class="b m state"[^>]*>(\w+)<', picture)) == states
    part = GLOSSARY.split("## The states of a message")[1].split("| word |")[0]
    assert set(re.findall(r"^\| (\w+) \|", part, re.MULTILINE)) - {"state"} == states
    inspect = (SOURCES / "sql/functions/operate/inspect.sql").read_text(encoding="utf-8")
    known = re.search(r"x not in \(([^)]*)\)", inspect)
    assert known is not None
    assert set(re.findall(r"'(\w+)'", known[1])) == states
    for page in ("docs/concepts/parked.md", "ARCHITECTURE.md"):
        assert "pictures/states.svg" in (ROOT / page).read_text(encoding="utf-8"), page
