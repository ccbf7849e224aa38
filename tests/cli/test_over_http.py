"""The command line on an HTTP server: its own tests of each command, and contexts without a database."""

# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import json
from pathlib import Path

import pytest

import headgate
from cli import test_messages as messages
from cli import test_streams as streams
from cli.test_messages import TestLooking, billing  # noqa: F401
from cli.test_streams import TestConsumers  # noqa: F401
from cli.test_tokens import test_add_list_remove  # noqa: F401
from cli.test_webhooks import test_push as check_push
from support.command_line import CommandLine
from support.over_http import behind, database_url, server, url  # noqa: F401
from support.servers import Replica


@pytest.fixture
def run(
    server: Replica,
    database_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    made = CommandLine(server.url, tmp_path, capsys, monkeypatch)
    made.environment["HEADGATE_TOKEN"] = server.token
    monkeypatch.setenv("HEADGATE_TOKEN", server.token)
    return made


class TestSending(messages.TestSending):
    test_more_than_one_batch = test_a_bad_line = test_options_for_one_message_only = None  # it is not about the server


class TestReceiving(messages.TestReceiving):
    test_a_terminal_is_safe_from_messages = None


class TestSettling(messages.TestSettling):
    test_many_replayed_ones_go_in_parts = test_many_dead_letters_go_in_parts = None  # slow


class TestStreams(streams.TestStreams):
    test_segments_and_compact = None


class TestChannels(streams.TestChannels):
    test_limits = None  # slow


def test_push(run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
    check_push(run, hg)


def test_the_doctor(run: CommandLine, hg: headgate.Headgate, orders: headgate.Stream) -> None:
    orders.consumer("c", create=True).pause()
    orders.send("x")
    done = run("doctor")
    assert "consumer" in done.out
    assert "headgate consumer resume orders c" in done.out, "its advice is commands"
    assert {f["subject"] for f in json.loads(run("doctor", "--json").out)} >= {"consumer orders/c"}


@pytest.fixture
def alone(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Without anything in the environment that says where."""
    for name in ("HEADGATE_DATABASE_URL", "HEADGATE_TOKEN"):
        monkeypatch.delenv(name)
        del run.environment[name]
    return run


class TestContexts:
    def test_a_server(self, alone: CommandLine, server: Replica, orders: headgate.Stream) -> None:
        """Its token is kept, and never shown."""
        shown = ""
        for done in (
            alone("context", "add", "prod", "--server", server.url, "--token", server.token, "--use"),
            alone("context", "show"),
            alone("context", "list", "--json"),
        ):
            assert done.code == 0, done.err
            shown += done.out + done.err
        assert server.token not in shown
        [known] = json.loads(alone("context", "list", "--json").out)
        assert known == {"name": "prod", "in_use": True, "database": None, "server": server.url, "token": "***"}
        assert (alone.home / "headgate" / "contexts.json").stat().st_mode & 0o777 == 0o600
        assert [s["name"] for s in alone("stream", "list", "--json").json] == ["orders"]
        assert alone("send", "orders", "hello").code == 0
        assert alone("send", "orders", "x", "--as-curl").out.startswith(f"curl -sS -X POST {server.url}/api/streams/")

    def test_the_token_of_the_environment(
        self,
        alone: CommandLine,
        server: Replica,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert alone("context", "add", "prod", "--server", server.url).code == 0
        done = alone("stream", "list")
        assert done.code == 1
        assert "a token is needed" in done.err
        monkeypatch.setenv("HEADGATE_TOKEN", server.token)
        assert alone("stream", "list").code == 0

    @pytest.mark.parametrize(
        "options",
        [
            ("--database", "http://localhost:7376"),
            ("--server", "localhost:7376"),
            ("--database", "postgresql://db/app", "--token", "hg_secret"),
        ],
    )
    def test_bad_ones(self, alone: CommandLine, options: tuple[str, ...]) -> None:
        done = alone("context", "add", "prod", *options)
        assert done.code == 2
        assert "hg_secret" not in done.err

    @pytest.mark.parametrize(
        "command",
        ["up", "migrate", "maintain", "stream segments orders", "stream compact orders",
         "pipeline status p", "bench publish", "torture many-keys"],
    )  # fmt: skip
    def test_what_needs_the_database_says_so(self, run: CommandLine, server: Replica, command: str) -> None:
        done = run(*command.split(), "--database", server.url)
        assert (done.code, done.out) == (1, "")
        assert "this command needs the database itself" in done.err
        assert "hint: give --database postgresql://" in done.err
