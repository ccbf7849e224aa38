"""--as-curl: each line is a call of the HTTP API, and nothing happens."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from datetime import UTC, datetime

import click
import pytest

import headgate
from headgate.cli import app
from support.command_line import CommandLine

# the routes of the HTTP API that commands stand for; {} is a name or number
ROUTES = {
    ("GET", "doctor"),
    ("POST", "streams"), ("GET", "streams"), ("GET", "streams/{}"), ("PATCH", "streams/{}"), ("DELETE", "streams/{}"),
    ("GET", "streams/{}/archives"), ("DELETE", "streams/{}/archives/{}"),
    ("POST", "streams/{}/messages"), ("GET", "streams/{}/messages"), ("GET", "streams/{}/messages/{}"),
    ("POST", "streams/{}/consumers"), ("GET", "streams/{}/consumers"), ("GET", "streams/{}/consumers/{}"),
    ("PATCH", "streams/{}/consumers/{}"), ("DELETE", "streams/{}/consumers/{}"),
    ("GET", "streams/{}/consumers/{}/receive"), ("POST", "streams/{}/consumers/{}/ack"),
    ("POST", "streams/{}/consumers/{}/nack"), ("POST", "streams/{}/consumers/{}/extend"),
    ("GET", "streams/{}/consumers/{}/messages"), ("POST", "streams/{}/consumers/{}/seek"),
    ("POST", "streams/{}/consumers/{}/pause"), ("POST", "streams/{}/consumers/{}/resume"),
    ("GET", "streams/{}/consumers/{}/channels"),
    ("GET", "streams/{}/consumers/{}/channels/{}"), ("PUT", "streams/{}/consumers/{}/channels/{}"),
    ("GET", "streams/{}/consumers/{}/dead"), ("DELETE", "streams/{}/consumers/{}/dead"),
    ("POST", "streams/{}/consumers/{}/dead/redrive"), ("POST", "streams/{}/consumers/{}/discard"),
    ("POST", "streams/{}/consumers/{}/retry"), ("POST", "streams/{}/consumers/{}/replay"),
    ("GET", "streams/{}/messages/{}/life"), ("GET", "streams/{}/attempts"),
    ("POST", "sources"), ("GET", "sources"), ("GET", "sources/{}"), ("PATCH", "sources/{}"), ("DELETE", "sources/{}"),
    ("POST", "sources/{}/backfill"), ("GET", "sources/{}/backfill"),
    ("DELETE", "sources/{}/backfill"), ("POST", "sources/{}/backfill/pause"), ("POST", "sources/{}/backfill/resume"),
    ("POST", "sources/{}/pause"), ("POST", "sources/{}/resume"), ("POST", "sources/{}/restart"),
    ("POST", "sources/{}"),  # that is, sources/check
    ("GET", "streams/{}/consumers/{}/workers"),
    ("POST", "tokens"), ("GET", "tokens"), ("DELETE", "tokens/{}"), ("GET", "audit"),
}  # fmt: skip

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

# command -> method, path with query, body
CALLS: dict[str, tuple[str, str, object]] = {
    "stream add s --lanes 4 --retain-up-to 7d": (
        "POST", "/api/streams", {"name": "s", "lanes": 4, "retain_up_to_ms": 604800000},
    ),
    "stream add s --if-not-exists": (
        "POST", "/api/streams", {"name": "s", "if_not_exists": True},
    ),
    "stream list": ("GET", "/api/streams", None),
    "stream show s": ("GET", "/api/streams/s", None),
    "stream edit s --max-storage 1GB --clear retain_up_to": (
        "PATCH", "/api/streams/s", {"max_storage": 1 << 30, "retain_up_to_ms": None},
    ),
    "stream set-lanes s 8": ("PATCH", "/api/streams/s", {"lanes": 8}),
    "stream remove s": ("DELETE", "/api/streams/s", None),
    "consumer add s c --order key --filter a.> --ack-wait 1m": (
        "POST", "/api/streams/s/consumers",
        {"name": "c", "order": "key", "filter": ["a.>"], "ack_wait_ms": 60000},
    ),
    "consumer list s": ("GET", "/api/streams/s/consumers", None),
    "consumer show s c": ("GET", "/api/streams/s/consumers/c", None),
    "consumer edit s c --max-deliver 3 --clear filter": (
        "PATCH", "/api/streams/s/consumers/c", {"max_deliver": 3, "filter": None},
    ),
    "consumer remove s c": ("DELETE", "/api/streams/s/consumers/c", None),
    "consumer pause s c": ("POST", "/api/streams/s/consumers/c/pause", None),
    "consumer resume s c": ("POST", "/api/streams/s/consumers/c/resume", None),
    "consumer seek s c 17": ("POST", "/api/streams/s/consumers/c/seek", {"to": 17}),
    "consumer seek s c end": ("POST", "/api/streams/s/consumers/c/seek", {"to": "end"}),
    """send s '{"a": "it'"'"'s"}' --key k --delay 1.5s --id i --channel ch""": (
        "POST", "/api/streams/s/messages",
        {"messages": [{"key": "k", "data": {"a": "it's"}, "channel": "ch", "delay_ms": 1500, "id": "i"}]},
    ),
    "send s -": ("POST", "/api/streams/s/messages", {"messages": [{"data": 1}, {"key": "k", "data": "$HOME `id`"}]}),
    "message list s --newest --filter a.* --before 9 --after 3": (
        "GET", "/api/streams/s/messages?limit=10&sort=seq_desc&key_pattern=a.%2A&before=9&after=3", None,
    ),
    "message show s 5": ("GET", "/api/streams/s/messages/5", None),
    "receive s c -n 10 --wait 5s --worker w": (
        "GET", "/api/streams/s/consumers/c/receive?batch_size=10&wait_ms=5000&worker=w", None,
    ),
    "receive s c --ack-wait 2m": ("GET", "/api/streams/s/consumers/c/receive?batch_size=1&ack_wait_ms=120000", None),
    "ack s c 1.2.3 4.5.6": ("POST", "/api/streams/s/consumers/c/ack", {"ack_ids": ["1.2.3", "4.5.6"]}),
    "nack s c 1.2.3 --delay 30s --error oops": (
        "POST", "/api/streams/s/consumers/c/nack", {"ack_ids": ["1.2.3"], "delay_ms": 30000, "error": "oops"},
    ),
    "extend s c 1.2.3 --by 1m": ("POST", "/api/streams/s/consumers/c/extend", {"ack_ids": ["1.2.3"], "by_ms": 60000}),
    "peek s c --newest": ("GET", "/api/streams/s/consumers/c/messages?limit=10&sort=seq_desc", None),
    "channel list s c --sort oldest --limit 5": (
        "GET", "/api/streams/s/consumers/c/channels?sort=oldest&limit=5", None,
    ),
    "channel show s c 'acme / co'": ("GET", "/api/streams/s/consumers/c/channels/acme%20%2F%20co", None),
    "peek s c --state parked --state dead": (
        "GET", "/api/streams/s/consumers/c/messages?limit=10&sort=seq_asc&states=parked%2Cdead", None,
    ),
    "channel set s c acme --max-concurrency 5 --clear release_interval": (
        "PUT", "/api/streams/s/consumers/c/channels/acme", {"max_concurrency": 5, "release_interval_ms": None},
    ),
    "channel set s c acme --max-concurrency 5 --release-interval 200ms": (
        "PUT", "/api/streams/s/consumers/c/channels/acme", {"max_concurrency": 5, "release_interval_ms": 200},
    ),
    "dead list s c": ("GET", "/api/streams/s/consumers/c/dead?limit=100", None),
    "dead redrive s c 1 2": ("POST", "/api/streams/s/consumers/c/dead/redrive", {"seqs": [1, 2]}),
    "dead redrive s c --all": ("POST", "/api/streams/s/consumers/c/dead/redrive", {"all": True}),
    "discard s c --seq 1 --seq 2": ("POST", "/api/streams/s/consumers/c/discard", {"seqs": [1, 2]}),
    "discard s c --filter a.> --channel acme --older-than 1h": (
        "POST", "/api/streams/s/consumers/c/discard",
        {"filter": ["a.>"], "channel": "acme", "older_than_ms": 3600000},
    ),
    "discard s c --all": ("POST", "/api/streams/s/consumers/c/discard", {"all": True}),
    "retry s c 1 2": ("POST", "/api/streams/s/consumers/c/retry", {"seqs": [1, 2]}),
    "retry s c --all": ("POST", "/api/streams/s/consumers/c/retry", {"all": True}),
    "replay s c 1 2": ("POST", "/api/streams/s/consumers/c/replay", {"seqs": [1, 2]}),
    "replay s c --all": ("POST", "/api/streams/s/consumers/c/replay", {"from_seq": 1}),
    "replay s c --to-seq 9 --from-time 2026-01-31T12:00:00+00:00 --filter a.>": (
        "POST", "/api/streams/s/consumers/c/replay",
        {"to_seq": 9, "from_time": NOON.astimezone().isoformat(), "filter": "a.>"},
    ),
    "message life s 5": ("GET", "/api/streams/s/messages/5/life", None),
    "message attempts s 5 --consumer c": ("GET", "/api/streams/s/attempts?seq=5&consumer=c&limit=100", None),
    "dead purge s c 1 2": ("DELETE", "/api/streams/s/consumers/c/dead", {"seqs": [1, 2]}),
    "token add shop --scope produce --stream orders.> --lifetime 1h": (
        "POST", "/api/tokens",
        {"name": "shop", "scopes": ["produce"], "streams": ["orders.>"], "lifetime_ms": 3600000},
    ),
    "source add gh s --scheme github --secret 12345678 --key repository.id --tolerance 1m": (
        "POST", "/api/sources",
        {
            "name": "gh", "stream": "s", "scheme": "github", "secret": "12345678", "key": "repository.id",
            "tolerance_ms": 60000,
        },
    ),
    "source add h s --scheme hmac --secret 12345678 --signature-header X-S --signature-prefix h= --keep-header K": (
        "POST", "/api/sources",
        {
            "name": "h", "stream": "s", "scheme": "hmac", "secret": "12345678", "headers": ["K"],
            "signature": {"header": "X-S", "prefix": "h="},
        },
    ),
    "stream archives s": ("GET", "/api/streams/s/archives", None),
    "stream drop-archive s c": ("DELETE", "/api/streams/s/archives/c", None),
    "source list": ("GET", "/api/sources", None),
    "source show gh": ("GET", "/api/sources/gh", None),
    "source edit gh --stream t --secret 12345678 --secret 87654321 --clear tolerance --clear key": (
        "PATCH", "/api/sources/gh",
        {"stream": "t", "secret": ["12345678", "87654321"], "tolerance_ms": None, "key": None},
    ),
    "source remove gh": ("DELETE", "/api/sources/gh", None),
    "source remove shop --forget": ("DELETE", "/api/sources/shop?forget=true", None),
    "source backfill shop --table public.a": ("POST", "/api/sources/shop/backfill", {"tables": ["public.a"]}),
    "source backfill shop --status": ("GET", "/api/sources/shop/backfill", None),
    "source backfill shop --from at=2026 --deletions": (
        "POST", "/api/sources/shop/backfill", {"from_column": "at", "from_value": "2026", "deletions": True},
    ),
    "source backfill shop --cancel --table public.a": (
        "DELETE", "/api/sources/shop/backfill", {"tables": ["public.a"]},
    ),
    "source backfill shop --pause": ("POST", "/api/sources/shop/backfill/pause", None),
    "source backfill shop --resume": ("POST", "/api/sources/shop/backfill/resume", None),
    "source restart shop --no-deletions": (
        "POST", "/api/sources/shop/restart", {"backfill": True, "deletions": False},
    ),
    "source check --url postgresql://a/b --table public.a": (
        "POST", "/api/sources/check", {"url": "postgresql://a/b", "tables": ["public.a"]},
    ),
    "source edit shop --table a --stream-of a=s --key-of a=b,c --drop-size 1GB": (
        "PATCH", "/api/sources/shop",
        {"tables": ["a"], "streams": {"a": "s"}, "keys": {"a": ["b", "c"]}, "drop_bytes": 2**30},
    ),
    "source pause shop": ("POST", "/api/sources/shop/pause", None),
    "source resume shop": ("POST", "/api/sources/shop/resume", None),
    "source add shop s --kind postgres --url postgresql://a/b --table public.orders --slot x": (
        "POST", "/api/sources",
        {
            "name": "shop", "stream": "s", "kind": "postgres", "url": "postgresql://a/b", "tables": ["public.orders"],
            "slot": "x",
        },
    ),
    "consumer add s c --push-url http://a/b --push-secret whsec_x --push-timeout 5s --push-header 'X-A: b'": (
        "POST", "/api/streams/s/consumers",
        {
            "name": "c",
            "push": {"url": "http://a/b", "secret": "whsec_x", "timeout_ms": 5000, "headers": {"X-A": "b"}},
        },
    ),
    "consumer edit s c --push-concurrency 3 --max-waiting 5": (
        "PATCH", "/api/streams/s/consumers/c", {"push": {"concurrency": 3}, "max_waiting": 5},
    ),
    "consumer edit s c --clear push --clear max_waiting": (
        "PATCH", "/api/streams/s/consumers/c", {"push": None, "max_waiting": None},
    ),
    "token list": ("GET", "/api/tokens", None),
    "consumer workers s c": ("GET", "/api/streams/s/consumers/c/workers", None),
    "doctor --patience 30s": ("GET", "/api/doctor?patience_ms=30000", None),
    "token audit --before 7": ("GET", "/api/audit?limit=100&before=7", None),
    "token remove hg_1": ("DELETE", "/api/tokens/hg_1", None),
}  # fmt: skip

LINES = '{"data": 1}\n{"data": "$HOME `id`", "key": "k", "seq": 5}\n'


def words(line: str) -> list[str]:
    """What curl is given when a shell runs the line: a function in its place prints it."""
    script = "curl() { printf '%s\\0' \"$@\"; }\n" + line
    environment = {"HEADGATE_TOKEN": "a secret", "PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def route(path: str) -> str:
    """A path as API.md writes it."""
    bare = path.partition("?")[0].removeprefix("/api/")
    return re.sub(r"(streams|consumers|channels|messages|tokens|sources|archives)/[^/]+", r"\1/{}", bare)


@pytest.mark.parametrize("command", CALLS)
def test_the_line(run: CommandLine, command: str) -> None:
    method, path, body = CALLS[command]
    done = run(*shlex.split(command), "--as-curl", input=LINES)
    assert (done.code, done.err) == (0, "")
    assert shlex.split(done.out)[:4] == ["curl", "-sS", "-X", method]
    given = words(done.out)
    assert given[3] == f"http://localhost:7376{path}"
    assert given[4:6] == ["-H", "Authorization: Bearer a secret"]
    assert "a secret" not in done.out
    if body is None:
        assert len(given) == 6
    else:
        assert given[6:9] == ["-H", "Content-Type: application/json", "--data-binary"]
        assert json.loads(given[9]) == body
    assert (method, route(path)) in ROUTES


def test_every_route_has_a_command() -> None:
    assert {(method, route(path)) for method, path, _ in CALLS.values()} == ROUTES


def test_every_command_that_has_the_option_is_here() -> None:
    def names(group: click.Group, before: str = "") -> set[str]:
        found = set()
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                found |= names(command, f"{before}{name} ")
            elif any(p.name == "as_curl" for p in command.params):
                found.add(before + name)
        return found

    assert {n for n in names(app.load()) if not any(c.startswith(n) for c in CALLS)} == set()


def test_nothing_happens(run: CommandLine, hg: headgate.Headgate) -> None:
    assert run("stream", "add", "s", "--as-curl").code == 0
    assert hg.streams() == []


def test_no_database_is_needed(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    assert run("receive", "s", "c", "--as-curl").code == 0


@pytest.mark.parametrize(
    "command",
    ["receive s c --follow", "receive s c --ack"],
)  # fmt: skip
def test_what_no_call_can_express(run: CommandLine, command: str) -> None:
    done = run(*command.split(), "--as-curl")
    assert (done.code, done.out) == (2, "")
    assert "has no form as an HTTP call" in done.err
