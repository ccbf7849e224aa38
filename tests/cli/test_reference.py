"""docs/cli.md says what the program says, and every command says what it does."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

import build_docs
import cli_reference
from headgate.cli import app

COMMANDS = dict(cli_reference.commands(app.load()))

# what API.md promises
PROMISED = """
up migrate doctor bench maintain completion send receive ack nack extend peek replay retry
stream add|list|show|edit|remove|set-lanes|segments|compact
consumer add|list|show|edit|remove|pause|resume|seek|workers
message list|show|life|attempts
channel list|show|set
dead list|redrive|purge
source add|list|show|edit|remove
token add|list|remove|audit
context add|use|list|show|remove
"""


def promised() -> set[str]:
    first, *groups = PROMISED.split("\n")[1:-1]
    found = {f"headgate {name}" for name in first.split()}
    for line in groups:
        group, _, names = line.partition(" ")
        found |= {f"headgate {group} {name}" for name in names.split("|")}
    return found


def test_the_page_is_current() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == cli_reference.page(), "run `make docs`"


def test_the_check_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_docs, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["build_docs.py", "--check"])
    assert build_docs.main() == 1
    monkeypatch.setattr(sys, "argv", ["build_docs.py"])
    assert build_docs.main() == 0
    monkeypatch.setattr(sys, "argv", ["build_docs.py", "--check"])
    assert build_docs.main() == 0
    (tmp_path / "cli.md").write_text("old")
    assert build_docs.main() == 1


def test_all_commands_are_there() -> None:
    assert promised() <= set(COMMANDS)
    page = cli_reference.page()
    for name in COMMANDS:
        assert f"# {name}\n" in page


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    if isinstance(command, click.Group):
        return
    options = {p.name: p for p in command.params if isinstance(p, click.Option)}
    assert "as_json" in options
    assert name.startswith(("headgate context", "headgate completion")) or {"database", "context"} <= set(options)
    for option in options.values():
        assert option.hidden or (option.help or "").endswith((".", "'.")), f"{option.name}: a sentence"
