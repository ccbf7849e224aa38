"""A browser's session: which requests a cookie counts for, and what pages may load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import headgate
from headgate.server.console import assets
from support.servers import Replica, data, error, replica

HEADER = {"X-Headgate-Console": "1"}
FORBIDDEN = r"https?://|innerHTML|outerHTML|insertAdjacentHTML|eval\(|new Function"
PAUSE = "/api/streams/orders/consumers/billing/pause"


@pytest.fixture(scope="module")
def server(shop_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with headgate.connect(shop_url) as hg:
        hg.stream("orders", create=True).consumer("billing", create=True)
    with replica(shop_url, tmp_path_factory.mktemp("sessions"), "push=off") as found:
        yield found


@pytest.fixture
def browser(server: Replica) -> Iterator[httpx.Client]:
    """Logged in, as a browser is: with a cookie, and the header that the console's page sends along."""
    with httpx.Client(base_url=server.url, headers=HEADER, timeout=70) as http:
        data(http.post("/login", headers={"Authorization": f"Bearer {server.token}"}))
        yield http


def test_login_and_logout(server: Replica) -> None:
    with httpx.Client(base_url=server.url, headers=HEADER, timeout=70) as http:
        assert data(http.get("/session")) == {"me": None}
        assert error(http.post("/login", headers={"Authorization": "Bearer hg_0.x"}), 401) == "unauthorized"
        answer = http.post("/login", headers={"Authorization": f"Bearer {server.token}"})
        assert data(answer)["scopes"] == ["admin"]
        cookie = answer.headers["set-cookie"]
        assert "; HttpOnly; SameSite=Strict" in cookie
        assert "Path" not in cookie  # below where the browser sees the login: a proxy may have a prefix
        assert "Secure" not in cookie
        assert data(http.get("/session"))["me"]["name"] == "first admin"
        assert len(data(http.get("/api/streams"))) == 1
        data(http.post("/logout"))
        assert data(http.get("/session")) == {"me": None}
        assert error(http.get("/api/streams"), 401) == "unauthorized"


def test_behind_https_the_cookie_is_sent_nowhere_else(server: Replica) -> None:
    origin = {"Origin": "https://queue.example.com", "Host": "queue.example.com", "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=server.url, headers={**HEADER, **origin}, timeout=70) as http:
        answer = http.post("/login", headers={"Authorization": f"Bearer {server.token}"})
        assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    "foreign",
    [
        {"X-Headgate-Console": ""},  # (httpx sends it empty; without it: below)
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
def test_what_another_sites_page_asks_is_refused(browser: httpx.Client, foreign: dict[str, str]) -> None:
    if foreign == {"X-Headgate-Console": ""}:
        del browser.headers["X-Headgate-Console"]
        foreign = {}
    for answer in (
        browser.post(PAUSE, headers=foreign),
        browser.get("/api/streams", headers=foreign),
        browser.get("/api/streams/orders/consumers/billing/receive", headers=foreign),
    ):
        assert error(answer, 403) == "foreign_page"
        assert "access-control-allow-origin" not in answer.headers
    assert error(browser.post("/logout", headers=foreign), 403) == "foreign_page"


def test_our_own_page_may(browser: httpx.Client, server: Replica) -> None:
    for ours in ({}, {"Origin": server.url}, {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}):
        data(browser.post(PAUSE, headers=ours))


def test_a_token_in_the_header_needs_none_of_it(server: Replica) -> None:
    with server.client() as http:
        data(http.post(PAUSE, headers={"Origin": "https://somewhere.example"}))


def test_a_monitor_may_look_and_change_nothing(server: Replica) -> None:
    with httpx.Client(base_url=server.url, headers=HEADER, timeout=70) as http:
        data(http.post("/login", headers={"Authorization": f"Bearer {server.new_token('monitor')}"}))
        assert data(http.get("/api/overview"))["totals"]["streams"] >= 1
        for path in ("history", "doctor", "pipelines", "streams/orders/segments", "streams/orders/history"):
            data(http.get(f"/api/{path}"))
        assert error(http.post(PAUSE), 403) == "scope_missing"


def test_a_token_for_some_streams_sees_only_them(server: Replica) -> None:
    with server.client(server.new_token("monitor", streams=["other.>"])) as http:
        found = data(http.get("/api/overview"))
        assert (found["totals"]["streams"], found["streams"], found["consumers"]) == (0, [], [])
        assert error(http.get("/api/history"), 403) == "stream_not_allowed"
        assert error(http.get("/api/streams/orders/history"), 403) == "stream_not_allowed"
        assert error(http.get("/api/doctor"), 403) == "stream_not_allowed"


class TestFiles:
    def test_the_page_loads_what_is_ours_and_nothing_else(self, server: Replica) -> None:
        with httpx.Client(base_url=server.url) as http:
            page = http.get("/", headers={"Accept": "text/html"})
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
            assert links
            for link in links:
                assert not link.startswith(("/", "http")), "a proxy may have a prefix"
                assert http.get("/" + link).status_code == 200, link
            assert error(http.get("/console/no.js"), 404) == "not_found"
            assert error(http.get("/console/..%2fassets.py"), 404) == "not_found"

    def test_a_file_is_sent_once(self, server: Replica) -> None:
        first = httpx.get(f"{server.url}/console/app.js")
        assert first.headers["cache-control"] == "no-cache"
        again = httpx.get(f"{server.url}/console/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

    def test_modules_import_each_other_and_are_small(self) -> None:
        files = sorted(assets.HOME.rglob("*.*"))
        assert sum(f.stat().st_size for f in files) < 300_000
        for file in (f for f in files if f.suffix == ".js"):
            text = file.read_text(encoding="utf-8")
            for name in re.findall(r'^(?:import|export|\}).* from "([^"]+)"', text, re.MULTILINE):
                assert (file.parent / name).resolve() in files, (file.name, name)
            assert not re.search(FORBIDDEN, text.replace("http://www.w3.org/2000/svg", "")), file.name


def test_without_tokens_it_is_for_this_machine_alone(shop_url: str, tmp_path: Path) -> None:
    with replica(shop_url, tmp_path, "auth=off", "push=off") as found:
        me = data(httpx.get(f"{found.url}/session"))["me"]
        assert (me["scopes"], me["auth"]) == (["admin"], False)
        answer = httpx.get(f"{found.url}/session", headers={"Origin": "https://evil.example"})
        assert error(answer, 403) == "foreign_page"
