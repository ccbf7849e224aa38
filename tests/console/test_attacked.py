"""The console under attack, in a real browser: hostile pages and messages, sessions that end, a database that goes."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Route, expect

import headgate
from headgate import Outgoing
from headgate.database import schema
from support.calls import value
from support.postgres import NewCluster
from support.servers import Replica, data, replica

from .browser import Browser, Tab
from .pages import PAGES
from .shop import EVIL

DEEP = 3000  # levels


@contextmanager
def foreign(html: str) -> Iterator[str]:
    """A page of somebody else's, on another port of this machine: the same site, another origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{found.server_port}/"
        finally:
            found.shutdown()


class TestForeignPages:
    """They cannot act with the cookie, read with it, or show the console inside of them."""

    def paused(self, db: psycopg.Connection) -> bool:
        return bool(value(db, "select paused from headgate.consumers where name = 'idle'"))

    def test_a_form_and_fetches(self, tab: Tab, server: Replica, db: psycopg.Connection) -> None:
        url = f"{server.url}/api/streams/orders/consumers/idle/pause"
        page = f"""<form method=post action="{url}" target=answer enctype="text/plain"><input name="{{}}"></form>
            <iframe name=answer></iframe><script>
            const asked = (o) => fetch("{url}", {{method: "POST", credentials: "include", ...o}})
              .then(r => r.type + r.status, () => "refused");
            Promise.all([asked({{mode: "no-cors"}}), asked({{headers: {{"X-Headgate-Console": "1"}}}}),
              fetch("{server.url}/api/overview", {{credentials: "include"}}).then(r => r.text(), () => "refused")])
              .then(found => {{ document.forms[0].submit(); document.title = found.join(" ") }});</script>"""
        with foreign(page) as other:
            hostile = tab.page.context.new_page()  # the same browser: its cookie is sent along
            with hostile.expect_response(lambda r: r.url == url and r.request.is_navigation_request()) as answer:
                hostile.goto(other)
            assert answer.value.status == 403
            expect(hostile).to_have_title("opaque0 refused refused")
            hostile.close()
        assert not self.paused(db)

    def test_a_frame(self, tab: Tab, server: Replica) -> None:
        with foreign(f'<iframe src="{server.url}/"></iframe>') as other:
            hostile = tab.page.context.new_page()
            said: list[str] = []
            hostile.on("console", lambda m: said.append(m.text))
            hostile.goto(other)
            hostile.wait_for_function("true")
            assert hostile.frames[1].locator("#app").count() == 0
            assert "frame-ancestors" in " ".join(said)
            hostile.close()

    def test_a_script_that_was_injected_does_not_run(self, tab: Tab) -> None:
        tab.open("/")
        tab.page.evaluate(
            """() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1";
            document.body.append(s); document.body.insertAdjacentHTML("beforeend",
            '<img src="data:," onerror="window.hacked = 1"><style>body { display: none }</style>'); }"""
        )
        assert tab.page.evaluate("window.hacked === undefined && getComputedStyle(document.body).display === 'block'")
        tab.forgive("Content Security Policy")
        tab.complaints.clear()
        tab.page.reload()


class TestHostileMessages:
    def test_deep_data(self, tab: Tab, shop: headgate.Headgate, db: psycopg.Connection) -> None:
        shop.stream("deep", create=True).consumer("c", create=True)
        for text in ("[" * DEEP + "1" + "]" * DEEP, '{"a":' * 200 + "1" + "}" * 200):
            db.execute("select headgate.send('deep', %s)", [text])
        tab.open("/messages?stream=deep")
        expect(tab.page.locator("tbody tr")).to_have_count(2)
        for seq in (1, 2):
            tab.open(f"/streams/deep/messages/{seq}", str(seq))
            expect(tab.page.locator(".payload")).to_be_visible()
        for _ in range(4):  # what is below is made when it is opened
            tab.page.locator(".tree details:not([open]) > summary").first.click()
        assert tab.page.locator(".tree details").count() < 20

    def test_large_data_is_fetched_when_asked_for(self, tab: Tab, shop: headgate.Headgate) -> None:
        stream = shop.stream("large", create=True, max_message_bytes=8_000_000)
        stream.send({"text": "x" * 3_000_000, "end": "the end"})
        stream.send(list(range(100_000)))
        answers: list[int] = []
        tab.page.on("response", lambda r: answers.append(int(r.headers.get("content-length", 0))))
        tab.open("/messages?stream=large")
        expect(tab.page.locator("tbody tr")).to_have_count(2)
        tab.open("/streams/large/messages/1")
        expect(tab.page.locator(".payload")).to_contain_text("The first 100,000 characters")
        assert max(answers) < 200_000
        tab.button("Show all").click()
        expect(tab.page.locator(".tree")).to_contain_text("the end")
        tab.open("/streams/large/messages/2")
        tab.button("Show all").click()
        tab.page.locator(".tree summary").first.click()
        expect(tab.page.locator(".tree li")).to_have_count(201)
        tab.button("99,800 more").click()
        expect(tab.page.locator(".tree li")).to_have_count(1201)

    def test_numbers_that_are_no_doubles(self, tab: Tab, shop: headgate.Headgate, db: psycopg.Connection) -> None:
        shop.stream("exact", create=True)
        numbers = ["9007199254740993", "-18446744073709551616", "0.1234567890123456789", "1e400", "0.1", "-0.5e-7"]
        db.execute("select headgate.send('exact', %s)", [f"[{','.join(numbers)}]"])
        tab.open("/streams/exact/messages/1")
        tab.button("JSON").click()
        shown = tab.page.locator(".payload pre").inner_text()
        for n in ("9007199254740993", "-18446744073709551616", "0.1"):
            assert f" {n}" in shown
        assert "null" not in shown

    def test_names_of_everything(self, tab: Tab, shop: headgate.Headgate, db: psycopg.Connection) -> None:
        db.execute(
            "select headgate.note_pipeline(%s, 'report', 'running', %s, %s::jsonb, %s::jsonb, %s)",
            [EVIL, EVIL, psycopg.types.json.Json({"x": EVIL}), psycopg.types.json.Json({"y": EVIL}), EVIL],
        )
        leased = shop.stream("leased", create=True, lanes=4).consumer("c", create=True, leased=True)
        shop.stream("leased").send_batch([EVIL])
        db.execute("select headgate.join_workers('leased', 'c', %s)", [EVIL])
        leased.receive(1, wait=5, worker=EVIL)
        for path in ("/pipelines", "/streams/leased/consumers/c?tab=workers", "/streams/leased/consumers/c?tab=flight"):
            tab.open(path)
            expect(tab.page.locator("main")).to_contain_text("<script>window.hacked=1</script>")
            assert tab.page.evaluate("window.hacked === undefined"), path
            assert tab.page.locator("main img").count() == 0, path

    def test_addresses(self, tab: Tab) -> None:
        """What somebody sends as a link."""
        for path in (
            f"/messages?stream={EVIL}", "/messages?stream=orders&from=never", "/messages?stream=orders&before=x",
            "/streams/%3Cimg%20src=x%20onerror=alert(1)%3E", "/streams/..%2f..%2fsession",
            "/dead?stream=a&consumer=%00",
            "/streams/orders/consumers/idle?tab=none", "/streams/orders/messages/99999999999999999999", "/%E0%A4%A",
            "/tenants?consumer=javascript:alert(1)", "/login?next=//evil.example", "/login?next=javascript:alert(1)",
        ):  # fmt: skip
            tab.page.goto(f"{tab.url}/#{path}")
            expect(tab.page.locator(".loading")).to_have_count(0)
            expect(tab.page.locator("main").first).to_be_visible()
            assert tab.page.evaluate("window.hacked === undefined")
            assert tab.page.url.startswith(tab.url)
        tab.complaints[:] = [c for c in tab.complaints if "Failed to load resource" not in c]  # 404 and 422


class TestSessions:
    def test_a_token_that_ends_while_a_page_is_open(self, browser: Browser, server: Replica) -> None:
        made = server.new_token("admin")
        with browser.tab(server.url, made) as tab:
            tab.open("/streams/orders")
            with server.client() as http:
                data(http.delete(f"/api/tokens/{made.partition('.')[0]}"))
            expect(tab.page.get_by_label("Token")).to_be_visible()
            expect(tab.page.locator("#notes")).to_contain_text("Log in again")
            tab.page.get_by_label("Token").fill(server.token)
            tab.button("Log in").click()
            expect(tab.page.get_by_role("heading", name="orders")).to_be_visible()  # where one was
            tab.forgive("401")

    def test_two_tabs(self, browser: Browser, server: Replica) -> None:
        with browser.tab(server.url, server.token) as tab:
            other = tab.page.context.new_page()
            other.goto(f"{server.url}/#/streams")
            expect(other.get_by_role("heading", name="Streams")).to_be_visible()
            tab.button("Live").click()
            expect(other.get_by_role("button", name="Paused")).to_be_visible()
            tab.button("Paused").click()
            tab.button("Log out").click()
            other.get_by_role("link", name="Doctor").click()
            expect(other.get_by_label("Token")).to_be_visible()
            other.close()

    def test_a_token_for_some_streams(self, browser: Browser, server: Replica) -> None:
        with browser.tab(server.url, server.new_token("monitor", streams=["payments"])) as tab:
            tab.open("/")
            expect(tab.page.locator("tbody")).to_contain_text("ledger")
            expect(tab.page.locator("tbody")).not_to_contain_text("orders")
            assert "Doctor" not in tab.page.locator("nav").inner_text()
            for path in ("/doctor", "/streams/orders", "/messages?stream=orders", "/tokens"):
                tab.page.goto(f"{tab.url}/#{path}")
                expect(tab.page.locator(".failure")).to_contain_text("this")
            tab.forgive("403")

    def test_logging_in_replaces_a_session_that_was_planted(self, browser: Browser, server: Replica) -> None:
        with browser.tab(server.url, None) as tab:
            port = server.url.rpartition(":")[2]
            planted = server.new_token("monitor")
            tab.page.context.add_cookies([{"name": f"headgate_{port}", "value": planted, "url": server.url}])
            tab.page.get_by_label("Token").fill(server.token)
            tab.button("Log in").click()
            expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
            [cookie] = tab.page.context.cookies()
            assert cookie["value"] == server.token
            tab.button("Log out").click()
            expect(tab.page.get_by_label("Token")).to_be_visible()
            assert tab.page.context.cookies() == []

    @pytest.mark.parametrize("token", ["x\r\nset-cookie: a=b", "hg_0; Path=/x", "\u2028", "a" * 100_000])
    def test_what_is_no_token(self, browser: Browser, server: Replica, token: str) -> None:
        with browser.tab(server.url, None) as tab:
            tab.page.get_by_label("Token").fill(token)
            tab.button("Log in").click()
            expect(tab.page.get_by_role("alert")).to_be_visible()
            assert tab.page.context.cookies() == []
            tab.complaints.clear()  # 401, 431, or the browser would not even send it


class TestSlowAndAway:
    def test_a_slow_answer_is_not_shown_on_another_page(self, tab: Tab) -> None:
        tab.open("/")
        held: list[Route] = []
        tab.page.route("**/api/pipelines", lambda route: held.append(route))
        tab.page.goto(f"{tab.url}/#/pipelines")
        expect(tab.page.locator(".loading")).to_be_visible()
        tab.open("/doctor", "Doctor")
        for route in held:
            route.fulfill(status=500, body="{}")
        tab.page.unroute("**/api/pipelines")
        tab.open("/streams", "Streams")
        assert tab.page.locator(".failure").count() == 0
        tab.complaints.clear()

    def test_the_database_goes_and_comes_back(self, browser: Browser, new_cluster: NewCluster, tmp_path: Path) -> None:
        cluster = new_cluster()
        with psycopg.connect(cluster.url()) as connection:
            connection.execute(schema.install_sql())
        with headgate.connect(cluster.url()) as hg:
            hg.stream("orders", create=True).consumer("billing", create=True)
        with replica(cluster.url(), tmp_path, "push=off") as server, browser.tab(server.url, server.token) as tab:
            tab.open("/streams/orders")
            cluster.stop("immediate")
            expect(tab.page.locator(".away")).to_contain_text("The database is away")
            expect(tab.page.get_by_role("heading", name="orders")).to_be_visible()  # as it was
            tab.button("Send a message").click()
            tab.question.get_by_role("button", name="Send", exact=True).click()
            expect(tab.question.get_by_role("alert")).to_be_visible()
            tab.question.get_by_role("button", name="Cancel").click()
            cluster.start()
            expect(tab.page.locator(".away")).to_have_count(0)
            tab.complaints.clear()


def test_a_monitor_changes_nothing(browser: Browser, server: Replica, db: psycopg.Connection) -> None:
    """Whatever buttons there are on all pages, and whatever its page asks by itself."""
    forbidden = {"Pause", "Resume", "Move…", "Limits…", "Discard…", "Remove", "Redrive", "Purge", "Now", "Edit…",
                 "Replay", "New stream", "New consumer", "Send a message", "Edit and send…", "Backfill…",
                 "Revoke"}  # fmt: skip
    token = server.new_token("monitor")
    done = "select count(*) from headgate.audit_log() where status < 300"
    before = value(db, done)
    with browser.tab(server.url, token) as tab:
        for path in PAGES:
            if path in ("/tokens", "/audit"):
                continue
            tab.open(path)
            assert not forbidden & set(tab.page.locator("main button").all_inner_texts()), path
        asked: list[Any] = tab.page.evaluate(
            """async () => { const found = []; for (const [method, path] of [
              ["POST", "streams"], ["DELETE", "streams/orders"], ["POST", "streams/orders/messages"],
              ["PATCH", "streams/orders/consumers/idle"], ["POST", "streams/orders/consumers/idle/seek"],
              ["POST", "streams/orders/consumers/idle/discard"],
              ["POST", "streams/orders/consumers/billing/dead/redrive"],
              ["DELETE", "streams/orders/consumers/billing/dead"], ["POST", "tokens"], ["GET", "tokens"],
              ["GET", "audit"]])
              found.push((await fetch("api/" + path, {method, headers: {"X-Headgate-Console": "1"}})).status);
              return found; }"""
        )
        assert set(asked) == {403}
        tab.forgive("403")
    assert value(db, done) == before


def test_base64_is_decoded_where_one_looks(tab: Tab, shop: headgate.Headgate) -> None:
    stream = shop.stream("coded", create=True)
    stream.send_batch([
        Outgoing(base64.b64encode(f"{EVIL} ü".encode()).decode()), Outgoing(base64.b64encode(bytes(range(64))).decode())
    ])  # fmt: skip
    tab.open("/streams/coded/messages/1")
    tab.button("From base64").click()
    expect(tab.page.locator(".payload pre")).to_have_text(f"{EVIL} ü")
    tab.open("/streams/coded/messages/2")
    tab.button("From base64").click()
    expect(tab.page.locator(".payload pre")).to_contain_text("000030  30 31 32")
    assert tab.page.evaluate("window.hacked === undefined")
