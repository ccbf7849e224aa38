"""`headgate source`, and consumers that push, on the command line."""

from __future__ import annotations

import re

import pytest

import headgate
from headgate.webhooks import new_secret
from support.command_line import CommandLine

WHSEC = new_secret()


@pytest.fixture(autouse=True)
def orders(hg: headgate.Headgate) -> headgate.Stream:
    return hg.stream("orders", create=True)


def test_sources(run: CommandLine, hg: headgate.Headgate) -> None:
    made = run("source", "add", "gh", "orders", "--scheme", "github", "--secret", "12345678", "--key", "a.b", "--json")
    assert made.json["secret"] == ["…5678"]
    assert made.json["settings"] == {"key": "a.b"}
    listed = run("source", "list")
    assert "gh" in listed.out
    assert "12345678" not in listed.out
    assert "12345678" not in run("source", "show", "gh").out
    changed = run("source", "edit", "gh", "--tolerance", "90s", "--clear", "key", "--json").json
    assert changed["settings"] == {"tolerance": 90}
    assert run("source", "edit", "gh", "--scheme", "none", "--json").json["secret"] == []
    hmac = ["--scheme", "hmac", "--secret", "12345678", "--signature-header", "X-Sign", "--keep-header", "X-Kind"]
    assert run("source", "add", "h", "orders", *hmac).out == "h\n"
    found = {s.name: s.settings for s in hg.sources.all()}
    assert found == {"gh": {"tolerance": 90}, "h": {"headers": ["X-Kind"], "signature": {"header": "X-Sign"}}}
    assert run("source", "remove", "gh", "--yes").code == 0
    assert run("source", "show", "gh").code == 3


def test_a_secret_from_the_environment(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_SOURCE_SECRET", WHSEC)
    assert run("source", "add", "in", "orders", "--json").json["secret"] == ["…" + WHSEC[-4:]]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("source add", 2), ("source add x", 2), ("source add x orders", 1), ("source show x", 3), ("source edit x", 2),
        ("source edit x --key k", 3), ("source remove x --yes", 3), ("source add x nowhere --scheme none", 3),
        ("source add x orders --scheme md5", 2), ("consumer add orders c --push-url ftp://x", 1),
        ("consumer add orders c --push-header x", 2), ("consumer add orders c --max-waiting 0", 1),
    ],
)  # fmt: skip
def test_bad_input(run: CommandLine, command: str, code: int) -> None:
    done = run(*command.split())
    assert (done.code, done.out) == (code, "")
    assert "hint: " in done.err


def test_push(run: CommandLine, hg: headgate.Headgate) -> None:
    done = run(
        "consumer", "add", "orders", "c", "--push-url", "https://example.com/x", "--push-timeout", "2s", "--json"
    )
    found = re.search(r"whsec_[A-Za-z0-9+/=]+", done.err)
    assert found, "it is shown once"
    push = {
        "url": "https://example.com/x",
        "concurrency": 8,
        "timeout": 2,
        "headers": [],
        "note": None,
        "last_error": None,
    }
    assert done.json["push"] == {**push, "secret": ["…" + found.group()[-4:]]}
    assert found.group() not in done.out
    args = ["--push-secret", WHSEC, "--push-secret", found.group(), "--push-header", "X-Api-Key: letmein"]
    changed = run("consumer", "edit", "orders", "c", *args, "--max-waiting", "3", "--json").json
    assert changed["push"]["secret"] == ["…" + WHSEC[-4:], "…" + found.group()[-4:]]
    assert (changed["push"]["headers"], changed["max_waiting"]) == (["X-Api-Key"], 3)
    assert "letmein" not in run("consumer", "show", "orders", "c").out
    assert run("consumer", "edit", "orders", "c", "--clear", "push", "--json").json["push"] is None
