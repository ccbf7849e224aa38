"""The examples of the documentation run as they stand there, page by page, and print what the page says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from docs.session import blocks, is_right

TESTS = Path(__file__).parent.parent
DOCS = TESTS.parent / "docs"

# Sessions that start from nothing, with a PostgreSQL of their own; the others find `hg`.
FROM_NOTHING = ["index.md", "tutorial.md", "guides/torture.md"]
# Written by the program or about the past: what they show is no example to be followed.
NOT_EXAMPLES = {"sql.md", "python.md", "http.md", "cli.md"}

PAGES = sorted(
    p.relative_to(DOCS).as_posix()
    for p in DOCS.rglob("*.md")
    if p.relative_to(DOCS).parts[0] not in ("adr", "benchmarks") and p.name not in NOT_EXAMPLES
)
WITH_EXAMPLES = [p for p in PAGES if p not in FROM_NOTHING and any(b.runs for b in blocks(DOCS / p))]


def run(page: str, directory: Path, *more: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HEADGATE_", "PG"))}
    environment["PYTHONPATH"] = str(Path(headgate.__file__).parent.parent)  # the code under test, from any directory
    environment["PYTHONWARNINGS"] = "ignore"  # plugins of this environment's pytest have some, which no page shows
    done = subprocess.run(
        [sys.executable, str(TESTS / "docs" / "session.py"), str(DOCS / page), *more],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", FROM_NOTHING)
def test_from_nothing(page: str, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_a_page(page: str, tmp_path: Path, database_url: str) -> None:
    run(page, tmp_path, database_url)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_compiles(page: str) -> None:
    for block in blocks(DOCS / page):
        assert block.kind in ("python", "sh", "sql", "text", "json", "yaml", "ini", "toml"), (
            f"{page}:{block.line}: {block.kind}"
        )
        if block.kind == "python":
            compile(block.code, f"{page}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_a_session_notices(tmp_path: Path, database_url: str) -> None:
    """An example that fails, and one that prints something else, fail the test and say where."""
    page = tmp_path / "page.md"
    for text, line in [
        ("# A\n```python\n1 / 0\n```\n", 3),
        ('```python\nprint(1)\n```\n```text title="Output"\n2\n```\n', 2),
        ("```sh\nheadgate stream show nothing\n```\n", 2),
        ("```sql\nselect headgate.send('nothing', '1')\n```\n", 2),
    ]:
        page.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError, match=rf"page\.md:{line}"):
            run(str(page), tmp_path, database_url)


def test_output() -> None:
    assert is_right("a   b\nc 17\n\n", "a b\nc …\n")
    assert not is_right("a b", "a")
    assert not is_right("a", "…b")
