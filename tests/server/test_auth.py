"""Tokens: who may do what, what they are answered otherwise, and what is noted."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import headgate
from headgate.server.api.routes import ROUTES
from headgate.server.http.errors import Problem
from headgate.server.http.limits import Rates
from headgate.server.operate.auth import Tokens
from headgate.server.settings import Settings
from support.servers import Replica, data, error, replica
from support.waiting import wait_until

S = "/api/streams/tenant_a.orders"
C = f"{S}/consumers/c"
MESSAGE = {"messages": [{"data": 1}]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(url: str, home: Path) -> Iterator[Replica]:
    with replica(url, home) as found, found.client() as admin:
        for name in ("tenant_a.orders", "tenant_b.orders"):
            data(admin.post("/api/streams", json={"name": name}))
            data(admin.post(f"/api/streams/{name}/consumers", json={"name": "c"}))
        yield found


# one call that each scope is needed for
CALLS: dict[str, tuple[str, str, dict[str, object] | None]] = {
    "produce": ("POST", f"{S}/messages", MESSAGE),
    "consume": ("GET", f"{C}/receive", None),
    "monitor": ("GET", C, None),
    "admin": ("POST", f"{C}/resume", None),
}


@pytest.mark.parametrize("scope", CALLS)
def test_each_scope_can_do_exactly_its_part(server: Replica, scope: str) -> None:
    with server.client(server.new_token(scope)) as http:
        for needed, (method, path, body) in CALLS.items():
            answer = http.request(method, path, json=body)
            if scope in (needed, "admin"):
                assert answer.is_success, answer.text
            else:
                assert error(answer, 403) == "scope_missing"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer hg_0000000000000000." + "a" * 43, "bearer \xff\xfe"],
)
def test_no_token(server: Replica, header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")} if header else {}
    with httpx.Client(base_url=server.url) as http:
        for method, path, body in CALLS.values():
            answer = http.request(method, path, json=body, headers=headers)
            assert error(answer, 401) == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert error(http.get("/metrics", headers=headers), 401)


def test_every_route_but_a_few_needs_a_token() -> None:
    open_to_all = {r.path for r in ROUTES.all if r.scope is None and not r.raw_body}
    assert open_to_all == {"/", "/healthz", "/readyz", "/openapi.json", "/docs"}
    assert {r.path for r in ROUTES.all if r.raw_body} == {"/api/webhooks/{source}"}, "whose signature is checked"


def test_a_wrong_secret(server: Replica) -> None:
    token = server.new_token("monitor")
    with server.client(token[:-1] + ("A" if token[-1] != "A" else "B")) as http:
        assert error(http.get("/api/streams"), 401) == "unauthorized"


def test_other_tenants_streams(server: Replica) -> None:
    """What exists and what does not are answered alike."""
    token = server.new_token("produce", "consume", "monitor", "admin", streams=["tenant_a.>"])
    with server.client(token) as http:
        assert [s["name"] for s in data(http.get("/api/streams"))] == ["tenant_a.orders"]
        assert http.get(C).is_success
        answers = set()
        for name in ("tenant_b.orders", "tenant_b.nothing", "tenant_a", "x"):
            path = f"/api/streams/{name}"
            for method, tail, body in (
                ("GET", "", None),
                ("POST", "/messages", MESSAGE),
                ("GET", "/consumers/c/receive", None),
                ("DELETE", "", None),
            ):
                answer = http.request(method, path + tail, json=body)
                assert error(answer, 403) == "stream_not_allowed"
                answers.add(answer.text)
            assert error(http.post("/api/streams", json={"name": name}), 403) == "stream_not_allowed"
        assert len(answers) == 1
        # nor can it give itself more, or read what others did
        assert error(http.post("/api/tokens", json={"name": "x", "scopes": ["admin"]}), 403)
        for path in ("/api/tokens", "/api/audit", "/api/doctor", "/metrics"):
            assert error(http.get(path), 403) == "stream_not_allowed"


def test_life_of_a_token(server: Replica, url: str) -> None:
    with server.client() as admin:
        body = {"name": "ci", "scopes": ["produce"], "streams": ["tenant_a.*"], "rate_limit": 1000}
        made = data(admin.post("/api/tokens", json=body))
        [listed] = [t for t in data(admin.get("/api/tokens")) if t["id"] == made["id"]]
        assert (listed["name"], listed["scopes"], listed["streams"]) == ("ci", ["produce"], ["tenant_a.*"])
        assert "token" not in listed
        secret = made["token"].partition(".")[2]
        with psycopg.connect(url) as db:
            for row in db.execute("select t::text from headgate.token t").fetchall():
                assert secret not in row[0]
        with server.client(made["token"]) as http:
            assert http.post(f"{S}/messages", json=MESSAGE).is_success
            data(admin.delete(f"/api/tokens/{made['id']}"))
            assert error(http.post(f"{S}/messages", json=MESSAGE), 401) == "unauthorized"
        assert error(admin.delete(f"/api/tokens/{made['id']}"), 404) == "token_not_found"
        bad = {"name": "x", "scopes": ["admin"], "streams": ["a..b"]}
        assert error(admin.post("/api/tokens", json=bad), 422) == "invalid_filter"


def test_a_token_ends(server: Replica) -> None:
    token = server.new_token("monitor", lifetime_ms=1)
    with server.client(token) as http:
        wait_until(lambda: http.get("/api/streams").status_code == 401, 5)


def test_revoked_elsewhere(server: Replica, url: str, tmp_path: Path) -> None:
    token = server.new_token("monitor")
    with replica(url, tmp_path) as other, other.client(token) as http, server.client() as admin:
        assert http.get("/api/streams").is_success
        data(admin.delete(f"/api/tokens/{token.partition('.')[0]}"))
        wait_until(lambda: http.get("/api/streams").status_code == 401, 5)


def test_revoked_while_a_poll_waits(server: Replica) -> None:
    """It gets nothing of what comes afterwards, and strands nothing."""
    token = server.new_token("consume")
    with server.client() as admin, server.client(token) as http, ThreadPoolExecutor(1) as pool:
        data(admin.post("/api/streams", json={"name": "kept"}))
        data(admin.post("/api/streams/kept/consumers", json={"name": "c"}))
        path = "/api/streams/kept/consumers/c/receive?wait_ms=60000"
        poll = pool.submit(http.get, path)
        wait_until(lambda: waiting(admin) == 1)
        data(admin.delete(f"/api/tokens/{token.partition('.')[0]}"))
        data(admin.post("/api/streams/kept/messages", json={"messages": [{"data": "secret"}]}))
        assert error(poll.result(), 401) == "unauthorized"
        assert [m["message"]["data"] for m in data(admin.get(path))] == ["secret"]


def waiting(http: httpx.Client) -> float:
    """How many polls wait at the server."""
    [line] = [n for n in http.get("/metrics").text.splitlines() if n.startswith("headgate_http_polls_waiting ")]
    return float(line.split()[1])


def test_rate_limit(server: Replica) -> None:
    with server.client(server.new_token("monitor", rate_limit=5)) as http:
        answers = [http.get("/api/streams") for _ in range(20)]
        limited = [a for a in answers if a.status_code == 429]
        assert limited
        assert error(limited[0], 429) == "rate_limited"
        assert int(limited[0].headers["retry-after"]) >= 1
        assert len(answers) - len(limited) >= 5


def test_rates_by_the_clock() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    for _ in range(10):
        rates.spend("a", 10)
    with pytest.raises(Problem) as refused:
        rates.spend("a", 10)
    assert refused.value.retry_after == pytest.approx(0.1)
    rates.spend("b", 10)
    now[0] += 0.1
    rates.spend("a", 10)


def test_administrative_calls_are_noted(server: Replica) -> None:
    with server.client() as admin:
        data(admin.post("/api/streams", json={"name": "audited"}))
        error(admin.post("/api/streams", json={"name": "audited"}), 409)
        with server.client(server.new_token("monitor")) as http:
            error(http.delete("/api/streams/audited"), 403)
        error(httpx.delete(f"{server.url}/api/streams/audited"), 401)  # else anybody could fill the log
        data(admin.delete("/api/streams/audited"))
        notes = [(n["action"], n["status"]) for n in reversed(data(admin.get("/api/audit")))]
        wanted = [
            ("POST /api/streams", 201), ("POST /api/streams", 409), ("POST /api/tokens", 201),
            ("DELETE /api/streams/audited", 403), ("DELETE /api/streams/audited", 200),
        ]  # fmt: skip
        assert notes[-5:] == wanted
        newest = data(admin.get("/api/audit", params={"limit": 1}))[0]
        assert newest["who"].endswith("first admin")
        assert newest["address"] == "127.0.0.1"


def test_the_first_token(server: Replica, home: Path, url: str) -> None:
    file = home / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with replica(url, home) as again:
        assert again.token == server.token, "one that works is kept"


def test_without_tokens_only_this_machine_is_listened_to(url: str, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(headgate.errors.InvalidArgument):
            Settings(host=host, auth=False)
    Settings(host="0.0.0.0")
    Settings(host="::1", auth=False)
    with replica(url, tmp_path, "auth=off") as open_one, httpx.Client(base_url=open_one.url) as http:
        assert http.get("/api/streams").is_success
        assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:7376"}, 200),
        ({"host": "evil.example"}, 403),  # a name of somebody's that was made to lead here
        ({"host": "localhost.evil.example:7376"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:7376", "origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:7376", "origin": "http://localhost:7376", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),  # an image of a page says no origin
        ({"sec-fetch-site": "none"}, 200),  # typed in
    ],
)
def test_pages_of_others_without_tokens(no_tokens: Replica, headers: dict[str, str], status: int) -> None:
    with httpx.Client(base_url=no_tokens.url, headers=headers) as http:
        assert http.get("/api/streams").status_code == status
        assert http.post("/api/streams/none/messages", json=MESSAGE).status_code == (403 if status == 403 else 404)
        assert http.get("/healthz").is_success


@pytest.fixture(scope="module")
def no_tokens(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(url, tmp_path_factory.mktemp("open"), "auth=off") as found:
        yield found


async def test_many_wrong_tokens_are_few_statements(url: str) -> None:
    async with headgate.AsyncHeadgate(url) as hg:
        statements = 0
        run = hg.run

        async def counted(*arguments: Any, **more: Any) -> Any:
            nonlocal statements
            statements += 1
            return await run(*arguments, **more)

        hg.run = counted  # type: ignore[method-assign]
        tokens = Tokens(hg)
        tried = [tokens.caller(f"Bearer hg_{i:016x}.{'x' * 43}".encode()) for i in range(1000)]
        answers = await asyncio.gather(*tried, return_exceptions=True)
        assert {type(a) for a in answers} == {Problem}
        assert statements == 1
        with pytest.raises(Problem):
            await tokens.caller(b"Bearer hg_0000000000000000." + b"x" * 43)
        assert statements == 1, "remembered for a moment"


def test_a_wrong_token_costs_no_connection_each(server: Replica) -> None:
    """An unknown id is looked up once a second, however often it is tried."""
    began = time.monotonic()
    with server.client("hg_ffffffffffffffff." + "x" * 43) as http:
        for _ in range(100):
            assert http.get("/api/streams").status_code == 401
    assert time.monotonic() - began < 5
