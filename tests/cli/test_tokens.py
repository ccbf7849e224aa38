"""`headgate token`: tokens that the HTTP server takes."""

from __future__ import annotations

import asyncio

import pytest

import headgate
from headgate.server.http.errors import Problem
from headgate.server.operate.auth import Tokens
from support.command_line import CommandLine


def caller(url: str, token: str) -> tuple[str, frozenset[str], bool]:
    """Whom the server takes the bearer of a token for: name, scopes, and whether it may use the stream orders.new."""

    async def ask() -> tuple[str, frozenset[str], bool]:
        async with headgate.AsyncHeadgate(url) as hg:
            found = await Tokens(hg).caller(f"Bearer {token}".encode())
            return found.name, found.scopes, found.may_use("orders.new")

    return asyncio.run(ask())


def test_add_list_remove(run: CommandLine, database_url: str) -> None:
    done = run("token", "add", "shop", "--scope", "produce", "--scope", "monitor", "--stream", "orders.>", "--json")
    assert done.code == 0
    assert caller(database_url, done.json["token"]) == ("shop", frozenset({"produce", "monitor"}), True)
    other = run("token", "add", "lab", "--scope", "consume", "--stream", "lab.*").out.strip()
    assert caller(database_url, other)[2] is False
    listed = run("token", "list")
    assert done.json["id"] in listed.out
    assert done.json["token"].partition(".")[2] not in listed.out, "secrets are not shown again"
    assert run("token", "remove", done.json["id"]).code == 0
    with pytest.raises(Problem, match="not valid"):
        caller(database_url, done.json["token"])
    assert run("token", "remove", done.json["id"]).code == 3


def test_bad_input(run: CommandLine) -> None:
    assert run("token", "add", "x").code == 2
    assert run("token", "add", "x", "--scope", "everything").code == 2
    assert run("token", "add", "x", "--scope", "admin", "--stream", "a..b").code == 1
    assert run("token", "add", "x", "--scope", "admin", "--lifetime", "soon").code == 2
    assert run("token", "remove").code == 2


def test_as_curl(run: CommandLine) -> None:
    line = run("token", "add", "shop", "--scope", "produce", "--lifetime", "1h", "--as-curl").out
    assert "-X POST http://localhost:7376/api/tokens" in line
    assert '"lifetime_ms": 3600000' in line
