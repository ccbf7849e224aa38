"""Why a push is refused is told wherever somebody looks: consumer show, peek, the doctor, the server's log."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import psycopg
import pytest

import headgate
from headgate import cli
from support.servers import data, replica
from support.waiting import wait_until

WHY = "refused: "


def test_everybody_says_why(
    database_url: str, db: psycopg.Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    push = {"url": "http://127.0.0.1:9/hook", "secret": "whsec_" + "A" * 32}
    db.execute("select headgate.create_stream('orders')")
    db.execute(
        "select headgate.create_consumer('orders', 'hook', backoff => '0.1', push => %s::jsonb)", [json.dumps(push)]
    )
    db.execute("select headgate.send('orders', 'x')")
    with replica(database_url, tmp_path) as server, server.client() as http:

        def shown() -> str:
            return str(data(http.get("/api/streams/orders/consumers/hook"))["push"]["last_error"])

        def most() -> int:
            return int(db.execute("select most_failures from headgate.consumers").fetchone()[0])  # type: ignore[index]

        wait_until(lambda: shown().startswith(WHY) and most() >= 3)
        with headgate.connect(database_url) as hg:
            found = [f for f in hg.doctor() if f.subject == "consumer orders/hook"]
        assert [f.severity for f in found] == ["warning"]
        assert "Pushing to http://127.0.0.1:9/hook fails: 1 messages" in found[0].finding
        assert WHY in found[0].finding
        assert "`headgate up --push-allow 127.0.0.1`" in found[0].advice
    log = capfd.readouterr().err
    assert "pushing message 1 of orders for hook failed, attempt 1: " + WHY in log
    assert log.count("pushing message") == 1, "not for each attempt"
    for command in (["peek", "orders", "hook"], ["consumer", "show", "orders", "hook"]):
        assert cli.main([*command, "--database", database_url]) == 0
        assert WHY in capfd.readouterr().out
    assert cli.main(["consumer", "show", "orders", "hook", "--database", database_url]) == 0
    shown_to_people = dict(line.split("  ", 1) for line in capfd.readouterr().out.splitlines())
    assert shown_to_people["push last_error"].strip().startswith(WHY), "in a line of its own"
    cli.main(["doctor", "--database", database_url])
    assert "`headgate retry orders hook --all`" in capfd.readouterr().out


def test_a_connection_that_fails_says_why(database_url: str, db: psycopg.Connection, tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        push = {"url": f"http://127.0.0.1:{closed.getsockname()[1]}/hook", "secret": "whsec_" + "A" * 32}
        db.execute("select headgate.create_stream('orders')")
        db.execute(
            "select headgate.create_consumer('orders', 'hook', backoff => '0.1', push => %s::jsonb)", [json.dumps(push)]
        )
        db.execute("select headgate.send('orders', 'x')")
        with replica(database_url, tmp_path, "push_private=on") as server, server.client() as http:

            def why() -> object:
                return data(http.get("/api/streams/orders/consumers/hook"))["push"]["last_error"]

            wait_until(lambda: why() is not None)
            assert why() == "the connection failed: connection refused"
