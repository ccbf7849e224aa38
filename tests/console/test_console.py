"""The console in a real browser: each page, and each thing that can be done, checked in the database."""

from __future__ import annotations

import psycopg
import pytest
from playwright.sync_api import expect

import headgate
from support.calls import value
from support.servers import Replica

from .browser import Browser, Tab
from .pages import PAGES
from .proxies import proxy
from .shop import EVIL, HUGE, receive


def test_every_page_shows_what_there_is_and_runs_nothing_of_it(tab: Tab) -> None:
    for path, title in PAGES.items():
        tab.open(path, title)
        assert tab.page.locator(".failure").count() == 0, (path, tab.page.locator(".failure").all_inner_texts())
        assert tab.page.evaluate("window.hacked === undefined"), path
    tab.open("/streams/orders/messages/1")
    expect(tab.page.locator(".tree").first).to_contain_text(str(HUGE))
    expect(tab.page.locator(".tree").first).to_contain_text("<script>window.hacked=1</script>")
    tab.open("/dead?stream=orders&consumer=billing")
    tab.page.locator(".fold").first.click()
    expect(tab.page.locator("td .error").first).to_contain_text(EVIL)
    assert tab.page.evaluate("window.hacked === undefined")
    assert tab.page.locator("main img").count() == 0


def test_pages_fit_a_phone(browser: Browser, server: Replica) -> None:
    with browser.tab(server.url, server.token, viewport={"width": 390, "height": 844}, color_scheme="dark") as tab:
        for path in PAGES:
            tab.open(path)
            width = tab.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, path
        tab.page.get_by_role("button", name="Menu").click()
        tab.page.get_by_role("link", name="Doctor").click()
        expect(tab.page.get_by_role("heading", name="Doctor")).to_be_visible()


class TestLogin:
    def test_below_a_path_of_a_proxy(self, browser: Browser, server: Replica) -> None:
        with proxy(server.url, "/queues") as url, browser.tab(url, server.token) as tab:
            tab.open("/streams", "Streams")
            tab.page.reload()
            expect(tab.page.get_by_role("heading", name="Streams")).to_be_visible()
            [cookie] = tab.page.context.cookies()
            assert cookie["path"] == "/queues"
            tab.button("Log out").click()
            expect(tab.page.get_by_label("Token")).to_be_visible()

    def test_a_token_is_asked_for_once(self, browser: Browser, server: Replica) -> None:
        with browser.tab(server.url, None) as tab:
            tab.page.get_by_label("Token").fill("hg_0123456789abcdef.nobody-knows-this-one-here")
            tab.button("Log in").click()
            expect(tab.page.get_by_role("alert")).to_contain_text("this token is not valid")
            tab.forgive("401")
            tab.page.goto(f"{server.url}/#/tokens")  # where one wanted to go is not forgotten
            tab.page.get_by_label("Token").fill(server.token)
            tab.button("Log in").click()
            expect(tab.page.get_by_role("heading", name="Tokens")).to_be_visible()
            [cookie] = tab.page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
            assert tab.page.evaluate("document.cookie") == ""
            tab.page.reload()
            expect(tab.page.get_by_role("heading", name="Tokens")).to_be_visible()
            tab.button("Log out").click()
            expect(tab.page.get_by_label("Token")).to_be_visible()
            assert tab.page.context.cookies() == []

    def test_a_token_that_may_look_changes_nothing(self, browser: Browser, server: Replica) -> None:
        with browser.tab(server.url, server.new_token("monitor")) as tab:
            for path in ("/streams", "/streams/orders/consumers/billing", "/dead?stream=orders&consumer=billing"):
                tab.open(path)
                actions = tab.page.locator("main button").all_inner_texts()
                forbidden = {"Pause", "Resume", "Move…", "Limits…", "Remove", "Redrive", "Purge", "Now", "New stream"}
                assert not forbidden & set(actions), path
            status = tab.page.evaluate(
                "fetch('api/streams/orders/consumers/idle/pause', "
                "{method: 'POST', headers: {'X-Headgate-Console': '1'}}).then(r => r.status)"
            )
            assert status == 403
            tab.forgive("403")


class TestConsumer:
    PATH = "/streams/orders/consumers/idle"

    def test_pause_and_resume(self, tab: Tab, db: psycopg.Connection) -> None:
        tab.open(self.PATH)
        tab.button("Pause").click()
        expect(tab.button("Resume")).to_be_visible()
        assert value(db, "select paused from headgate.consumers where name = 'idle'")
        tab.button("Resume").click()
        expect(tab.button("Pause")).to_be_visible()
        assert not value(db, "select paused from headgate.consumers where name = 'idle'")

    def test_moving_says_first_what_it_does(self, tab: Tab, db: psycopg.Connection) -> None:
        unread = value(db, "select unread from headgate.consumers where name = 'idle'")
        tab.open(self.PATH)
        tab.button("Move…").click()
        tab.question.get_by_label("To").select_option("end")
        expect(tab.question).to_contain_text(f"About {unread} messages that it has not read are passed over")
        tab.confirm("Move it", "idle was moved")
        assert value(db, "select unread from headgate.consumers where name = 'idle'") == 0
        tab.button("Move…").click()
        tab.question.get_by_label("To").select_option("beginning")
        expect(tab.question).to_contain_text("come again")
        tab.question.get_by_role("button", name="Cancel").click()
        assert value(db, "select unread from headgate.consumers where name = 'idle'") == 0
        tab.button("Move…").click()
        tab.question.get_by_label("To").select_option("beginning")
        tab.confirm("Move it", "idle was moved")
        assert value(db, "select unread from headgate.consumers where name = 'idle'") == unread

    def test_limits(self, tab: Tab, db: psycopg.Connection) -> None:
        tab.open(self.PATH)
        tab.button("Limits…").click()
        tab.question.get_by_label("Attempts before").fill("7")
        tab.confirm("Change them", "Changed: max_deliver.")
        assert value(db, "select max_deliver from headgate.consumers where name = 'idle'") == 7

    def test_limits_of_a_tenant(self, tab: Tab, shop: headgate.Headgate) -> None:
        tab.open("/tenants?consumer=orders/idle")
        row = tab.page.locator("tbody tr", has_text=f"{EVIL}1")
        row.get_by_role("button", name="Limits…").click()
        tab.question.get_by_label("In hand at once").fill("2")
        tab.confirm("Change them", "Changed.")
        [channel] = shop.insights.channels("orders", "idle", f"{EVIL}1")
        assert channel.max_concurrency == 2

    def test_discarding_asks_for_the_name(self, tab: Tab, shop: headgate.Headgate) -> None:
        consumer = shop.stream("bare").consumer("doomed", create=True)
        shop.stream("bare").send_batch(["a", "b"])
        tab.open("/streams/bare/consumers/doomed")
        tab.button("Discard…").click()
        expect(tab.question.get_by_role("button", name="Discard them")).to_be_disabled()
        tab.question.get_by_label("Or type doomed").fill("doomed")
        tab.confirm("Discard them", "2 messages were discarded")
        assert consumer.receive(5) == []
        tab.button("Remove").click()
        tab.question.get_by_label("Type doomed").fill("doomed")
        tab.confirm("Remove it", "doomed is gone")
        assert shop.stream("bare").consumers() == []

    def test_trying_again_now(self, tab: Tab, shop: headgate.Headgate) -> None:
        tab.open("/streams/orders/consumers/billing")
        tab.button("Now").click()
        tab.confirm("Try again", "1 are due now")
        [m] = [m for m in receive(shop.stream("orders").consumer("billing"), 6) if m.attempt == 2]
        m.nack(delay=3600, error=EVIL)


class TestMessage:
    def test_why_it_waits(self, tab: Tab, shop: headgate.Headgate) -> None:
        tab.open("/streams/payments/messages/2")
        expect(tab.page.locator("main")).to_contain_text("It waits for message 1 of the same key.")
        tab.page.get_by_role("link", name="It waits for message 1").click()
        expect(tab.page.locator("main")).to_contain_text("Attempt 1 failed: the next one is due")
        expect(tab.page.locator("main")).to_contain_text("locked")

    def test_replay(self, tab: Tab, shop: headgate.Headgate) -> None:
        stream = shop.stream("again", create=True)
        consumer = stream.consumer("c", create=True)
        seq = stream.send({"once": 1})
        receive(consumer, 1)[0].ack()
        tab.open(f"/streams/again/messages/{seq}")
        tab.button("Replay").click()
        tab.confirm("Replay it", "It comes again")
        assert [m.seq for m in receive(consumer, 1)] == [seq]

    def test_sending_keeps_large_integers(self, tab: Tab, shop: headgate.Headgate, db: psycopg.Connection) -> None:
        shop.stream("typed", create=True)
        tab.open("/streams/typed")
        tab.button("Send a message").click()
        tab.question.get_by_label("Key").fill("a.b")
        tab.question.get_by_label("Data, as JSON").fill(f'{{"n": {HUGE}}}')
        tab.confirm("Send", "Sent as 1")
        [m] = shop.stream("typed").messages(1)
        assert (m.key, m.data) == ("a.b", {"n": HUGE})

    def test_the_tail_shows_what_comes(self, tab: Tab, shop: headgate.Headgate) -> None:
        stream = shop.stream("tailed", create=True)
        stream.send("before")
        tab.open("/messages?stream=tailed&tail=on")
        expect(tab.page.locator("main")).to_contain_text("Waiting for what comes")
        stream.send("just now")
        expect(tab.page.locator("main")).to_contain_text("just now")
        expect(tab.page.locator("main")).not_to_contain_text("before")

    def test_filters_are_in_the_address(self, tab: Tab, shop: headgate.Headgate) -> None:
        stream = shop.stream("searched", create=True)
        for n in range(3):
            stream.send({"n": n}, key=f"k.{n}")
        tab.open("/messages?stream=searched")
        tab.page.get_by_label("Key").fill("k.1")
        tab.page.get_by_label("Key").press("Enter")
        expect(tab.page.locator("tbody tr")).to_have_count(1)
        tab.page.reload()
        expect(tab.page.locator("tbody tr")).to_have_count(1)
        expect(tab.page.locator("tbody")).to_contain_text("k.1")


class TestDead:
    @pytest.fixture
    def consumer(self, shop: headgate.Headgate) -> headgate.Consumer:
        name = f"dying_{len(shop.streams())}"
        stream = shop.stream(name, create=True)
        consumer = stream.consumer("c", create=True, max_deliver=1)
        stream.send_batch([{"n": n} for n in range(6)])
        for m in receive(consumer, 6):
            kind = "no such user" if m.data["n"] % 2 else "timeout"
            m.nack(error=f"{kind} after {m.data['n']} ms (id {m.seq})")
        assert len(consumer.dead_letters()) == 6
        return consumer

    def test_a_group_at_a_time(self, tab: Tab, consumer: headgate.Consumer) -> None:
        tab.open(f"/dead?stream={consumer.stream}&consumer=c")
        expect(tab.page.locator(".group")).to_have_count(2)
        timeouts = tab.page.locator(".group", has_text="timeout after")
        timeouts.get_by_role("button", name="Redrive", exact=True).click()
        expect(tab.question).to_contain_text("Redrive 3 dead letters?")
        tab.confirm("Redrive", "3 were redriven")
        assert sorted(m.data["n"] for m in receive(consumer, 3)) == [0, 2, 4]
        others = tab.page.locator(".group", has_text="no such user")
        others.get_by_role("button", name="Purge", exact=True).click()
        tab.confirm("Purge", "3 were thrown away")
        assert consumer.dead_letters() == []

    def test_edited_and_redriven(self, tab: Tab, consumer: headgate.Consumer) -> None:
        tab.open(f"/dead?stream={consumer.stream}&consumer=c")
        tab.page.locator(".fold").first.click()
        tab.button("Edit…").first.click()
        tab.question.get_by_label("Data, as JSON").fill('{"n": 99}')
        expect(tab.question.locator(".plus")).to_contain_text('"n": 99')
        tab.confirm("Send", "the dead letter is gone")
        assert len(consumer.dead_letters()) == 5
        assert [m.data for m in receive(consumer, 1)] == [{"n": 99}]


def test_a_stream_and_its_consumer_are_made_and_removed(tab: Tab, shop: headgate.Headgate) -> None:
    tab.open("/streams")
    tab.button("New stream").click()
    tab.question.get_by_label("Name").fill("made.here")
    tab.confirm("Make it", "made.here is there")
    tab.button("New consumer").click()
    tab.question.get_by_label("Name").fill("reader")
    tab.question.get_by_label("Order").select_option("key")
    tab.confirm("Make it", "reader is there")
    assert shop.insights.consumer("made.here", "reader").order == "key"
    tab.open("/streams/made.here")
    tab.button("Remove").click()
    tab.question.get_by_label("Type made.here").fill("made.here")
    tab.confirm("Remove it", "made.here is gone")
    assert "made.here" not in shop.streams()


def test_a_token_is_made_and_revoked(tab: Tab, server: Replica, db: psycopg.Connection) -> None:
    tab.open("/tokens")
    tab.button("New token").click()
    tab.question.get_by_label("Name").fill(EVIL)
    tab.question.get_by_role("button", name="Make it").click()
    shown = tab.question.locator(".secret")
    expect(shown).to_contain_text("hg_")
    token = shown.inner_text().strip()
    tab.question.get_by_role("button", name="Cancel").click()
    with server.client(token) as http:
        assert http.get("/api/overview").status_code == 200
    tab.page.locator("tbody tr", has_text=token.partition(".")[0]).get_by_role("button", name="Revoke").click()
    tab.confirm("Revoke it", "Revoked.")
    assert value(db, "select revoked_at is not null from headgate.tokens() where id = %s", token.partition(".")[0])
    assert tab.page.evaluate("window.hacked === undefined")


def test_copied_calls_work(tab: Tab, shop: headgate.Headgate, db: psycopg.Connection) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.open("/streams/orders/messages/1")
    tab.page.get_by_text("Copy as…").click()
    for language, part in {
        "curl": "/api/streams/orders/messages/1", "CLI": "headgate message show orders 1",
        "SQL": "headgate.message_life('orders', 1)", "Python": 'hg.stream("orders").message_life(1)',
    }.items():  # fmt: skip
        tab.page.locator(".copies").get_by_role("button", name=language).click()
        assert part in tab.page.evaluate("navigator.clipboard.readText()")


def test_a_finding_leads_to_what_it_is_about(tab: Tab) -> None:
    tab.open("/doctor")
    tab.page.get_by_role("link", name="orders/billing", exact=True).first.click()
    expect(tab.page.get_by_role("heading", name="billing")).to_be_visible()


def test_it_says_that_the_server_is_away(tab: Tab) -> None:
    tab.open("/")
    tab.page.context.set_offline(True)
    expect(tab.page.locator(".away")).to_contain_text("The server does not answer")
    tab.page.context.set_offline(False)
    expect(tab.page.locator(".away")).to_have_count(0)
    tab.complaints.clear()


def test_jumping_to_a_consumer_by_its_name(tab: Tab) -> None:
    tab.open("/")
    tab.page.keyboard.press("/")
    tab.page.get_by_label("Search").fill("ledg")
    expect(tab.question.get_by_role("option").first).to_contain_text("payments / ledger")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("heading", name="ledger")).to_be_visible()
