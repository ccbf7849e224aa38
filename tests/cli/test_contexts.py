"""Contexts: which database a command is about, and the file that keeps them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import headgate
from support.command_line import CommandLine

SECRET = "hunter2%40"  # of URLs
OTHER = f"postgresql://me:{SECRET}@db.example.com:6432/app?sslmode=require"


@pytest.fixture
def bare(run: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandLine:
    """Without $HEADGATE_DATABASE_URL, in a directory without a private server."""
    monkeypatch.delenv("HEADGATE_DATABASE_URL")
    monkeypatch.delenv("HEADGATE_EMBEDDED_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return run


def file_of(run: CommandLine) -> Path:
    return run.home / "headgate" / "contexts.json"


def test_add_use_list_show_remove(bare: CommandLine) -> None:
    assert bare("context", "list").err == "there are no contexts yet\n"
    assert bare("context", "add", "prod", "--database", OTHER, "--server", "https://q.example.com").out == "prod\n"
    assert bare("context", "add", "test", "--database", "postgresql://localhost/test").code == 0
    assert {c["name"]: c["in_use"] for c in bare("context", "list", "--json").json} == {"prod": True, "test": False}
    assert bare("context", "use", "test", "--json").json["in_use"] is True
    assert bare("context", "show", "--json").json["name"] == "test"
    assert bare("context", "show", "prod", "--json").json["server"] == "https://q.example.com"
    assert bare("context", "remove", "test").out == "test\n"
    assert [c["in_use"] for c in bare("context", "list", "--json").json] == [False]
    for command in ("use", "show", "remove"):
        assert bare("context", command, "test").code == 3


def test_the_file_is_private(bare: CommandLine) -> None:
    previous = os.umask(0)
    try:
        bare("context", "add", "prod", "--database", OTHER)
    finally:
        os.umask(previous)
    assert file_of(bare).stat().st_mode & 0o777 == 0o600
    assert file_of(bare).parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(file_of(bare).read_text())["contexts"]["prod"]["database"] == OTHER
    assert [p.name for p in file_of(bare).parent.iterdir()] == ["contexts.json"]


def test_a_file_that_others_may_read_is_refused(bare: CommandLine) -> None:
    bare("context", "add", "prod", "--database", OTHER)
    file_of(bare).chmod(0o644)
    done = bare("context", "list")
    assert done.code == 1
    assert f"hint: chmod 600 {file_of(bare)}" in done.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"current": null, "contexts": {"a": {"database": 1, "x": 2}}}'])
def test_a_broken_file(bare: CommandLine, text: str) -> None:
    bare("context", "add", "prod", "--database", OTHER)
    file_of(bare).write_text(text)
    done = bare("stream", "list")
    assert done.code == 1
    assert "is not a file of contexts" in done.err


@pytest.mark.parametrize(
    "database",
    [OTHER, "host=db user=me password=hunter2@ dbname=app", f"postgresql://db/app?password={SECRET}",
     f"postgresql://me@db/app?sslpassword={SECRET}"],
)  # fmt: skip
def test_secrets_are_never_printed(bare: CommandLine, database: str) -> None:
    shown = ""
    for command in (
        ("add", "prod", "--database", database, "--json"), ("list",), ("list", "--json"), ("show",), ("use", "prod"),
        ("add", "bad", "--database", database + " :// ="),
    ):  # fmt: skip
        done = bare("context", *command)
        shown += done.out + done.err
    assert "hunter2" not in shown
    assert "***" in shown


def test_which_database(
    bare: CommandLine, database_url: str, hg: headgate.Headgate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--database, then --context, $HEADGATE_CONTEXT, $HEADGATE_DATABASE_URL, then the context in use."""
    hg.stream("here", create=True)
    nowhere = "postgresql://nobody@127.0.0.1:1/none"

    def is_here(*options: str) -> bool:
        done = bare("stream", "list", "--json", *options)
        return done.code == 0 and [s["name"] for s in done.json] == ["here"]

    none = bare("stream", "list")
    assert none.code == 1
    assert "hint: give --database URL" in none.err
    assert not Path(".headgate").exists()
    bare("context", "add", "good", "--database", database_url)
    bare("context", "add", "bad", "--database", nowhere)
    assert is_here()
    assert not is_here("--context", "bad")
    monkeypatch.setenv("HEADGATE_DATABASE_URL", nowhere)
    assert not is_here()
    assert is_here("--context", "good")
    assert is_here("--database", database_url)
    monkeypatch.setenv("HEADGATE_CONTEXT", "good")
    assert is_here()
    assert not is_here("--database", nowhere)
    both = bare("stream", "list", "--database", nowhere, "--context", "good")
    assert both.code == 2


def test_the_private_server(bare: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is used where there is one; only `up` and `migrate` make one."""
    home = tmp_path / "private"
    monkeypatch.setenv("HEADGATE_EMBEDDED_DIR", str(home))
    assert bare("stream", "add", "here").code == 1
    assert not home.exists()
    assert bare("migrate").code == 0
    assert bare("stream", "add", "here").out == "here\n"
    assert [s["name"] for s in bare("stream", "list", "--json").json] == ["here"]


def test_the_server_of_a_context_is_in_curl_lines(bare: CommandLine) -> None:
    bare("context", "add", "prod", "--database", OTHER, "--server", "https://q.example.com/")
    line = bare("stream", "list", "--as-curl").out
    assert "https://q.example.com/api/streams " in line
    assert "hunter2" not in line


def test_bad_input(bare: CommandLine) -> None:
    assert bare("context", "add").code == 2
    assert bare("context", "add", "prod").code == 2
    assert bare("context", "add", "prod", "--database", "nonsense").code == 1
    assert not file_of(bare).exists()
