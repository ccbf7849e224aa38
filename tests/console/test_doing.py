"""What one does with the console beside its pages' buttons: keys, commands, files, trials; and the first steps."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page, expect

import headgate
from headgate import Outgoing
from headgate.postgres.cluster import Cluster
from support.calls import value
from support.databases import new_database
from support.servers import replica

from .browser import Browser, Tab
from .shop import EVIL, HUGE, receive


class TestKeys:
    def test_to_pages_and_through_rows(self, tab: Tab) -> None:
        tab.open("/")
        keyboard = tab.page.keyboard
        keyboard.press("g")
        keyboard.press("s")
        expect(tab.page.get_by_role("heading", name="Streams")).to_be_visible()
        expect(tab.page.locator("tbody tr").nth(1)).to_be_visible()
        keyboard.press("j")
        keyboard.press("j")
        wanted = tab.page.locator("tbody tr").nth(1).get_by_role("link").first.inner_text()
        keyboard.press("Enter")
        expect(tab.page.get_by_role("heading", name=wanted, exact=True)).to_be_visible()

    def test_they_are_shown(self, tab: Tab) -> None:
        tab.open("/")
        tab.page.keyboard.press("?")
        expect(tab.question).to_contain_text("Next row, row before")
        tab.page.keyboard.press("Escape")
        expect(tab.question).to_have_count(0)

    def test_the_space_bar_stops_the_updates(self, tab: Tab) -> None:
        tab.open("/")
        tab.page.keyboard.press("Space")
        expect(tab.button("Paused")).to_be_visible()
        tab.page.reload()
        expect(tab.button("Paused")).to_be_visible()  # it is remembered
        tab.page.keyboard.press("Space")
        expect(tab.button("Live")).to_be_visible()


class TestCommands:
    def run(self, tab: Tab, text: str, first: str) -> None:
        tab.page.keyboard.press("/")
        tab.page.get_by_label("Search").fill(text)
        expect(tab.question.get_by_role("option").first).to_contain_text(first)
        tab.page.keyboard.press("Enter")

    def test_pausing(self, tab: Tab, db: psycopg.Connection) -> None:
        tab.open("/")
        paused = "select paused from headgate.consumers where name = 'ledger'"
        self.run(tab, "pause ledger", "Pause payments / ledger")
        tab.confirm("Pause", "ledger is paused")
        assert value(db, paused)
        self.run(tab, "resume ledger", "Resume payments / ledger")
        tab.confirm("Resume", "ledger goes on")
        assert not value(db, paused)

    def test_a_message_by_stream_and_seq(self, tab: Tab) -> None:
        tab.open("/")
        self.run(tab, "payments 2", "2 of payments")
        expect(tab.page.get_by_role("heading", name="2 of payments")).to_be_visible()

    def test_times_are_remembered(self, tab: Tab) -> None:
        tab.open("/streams/payments?tab=messages")
        self.run(tab, "times utc", "Times: UTC")
        expect(tab.page.locator("tbody tr").first).to_contain_text("Z")
        tab.page.reload()
        expect(tab.page.locator("tbody tr").first).to_contain_text("Z")
        self.run(tab, "times relative", "Times: relative")
        expect(tab.page.locator("tbody tr").first).to_contain_text("ago")
        self.run(tab, "times local", "Times: local")
        expect(tab.page.locator("tbody tr").first).not_to_contain_text("ago")


class TestSearching:
    @pytest.fixture(scope="class")
    def stream(self, shop: headgate.Headgate) -> headgate.Stream:
        stream = shop.stream("found", create=True)
        stream.send_batch(
            Outgoing({"n": n, "huge": HUGE, "text": f"={EVIL}" if n % 7 == 0 else "plain"}, key=f"k.{n % 3}")
            for n in range(600)
        )
        return stream

    def test_a_text_page_by_page(self, tab: Tab, stream: headgate.Stream) -> None:
        tab.open("/messages?stream=found")
        tab.page.get_by_label("Text in it").fill("onerror")
        tab.page.get_by_label("Text in it").press("Enter")
        expect(tab.page.locator("tbody tr")).to_have_count(50)
        tab.button("More").click()
        expect(tab.page.locator("tbody tr")).to_have_count(36)  # of 86
        tab.page.go_back()
        expect(tab.page.locator("tbody tr")).to_have_count(50)
        tab.page.reload()
        expect(tab.page.locator("tbody tr")).to_have_count(50)

    def test_times(self, tab: Tab, stream: headgate.Stream) -> None:
        tab.open("/messages?stream=found&to=2020-01-01T00:00:00.000Z")
        expect(tab.page.locator("main")).to_contain_text("No messages.")
        tab.open("/messages?stream=found&from=2020-01-01T00:00:00.000Z&sort=oldest")
        expect(tab.page.locator("tbody tr").first).to_contain_text("k.0")

    def test_what_was_mistyped_can_be_mended(self, tab: Tab, stream: headgate.Stream) -> None:
        tab.open("/messages?stream=found")
        tab.page.get_by_label("Stream").fill("nowhere")
        tab.page.get_by_label("Stream").press("Enter")
        expect(tab.page.get_by_role("alert")).to_contain_text("does not exist")
        tab.page.get_by_label("Stream").fill("found")
        tab.page.get_by_label("Stream").press("Enter")
        expect(tab.page.locator("tbody tr")).to_have_count(50)
        tab.forgive("404")

    @pytest.mark.parametrize("form", ["NDJSON", "CSV"])
    def test_all_of_it_in_a_file(self, tab: Tab, stream: headgate.Stream, tmp_path: Path, form: str) -> None:
        tab.open("/messages?stream=found&text=onerror&sort=oldest")
        tab.button(f"Save {form}").click()
        with tab.page.expect_download() as download:
            tab.confirm("Save", "86 messages are in found")
        assert download.value.suggested_filename == f"found.{form.lower()}"
        path = tmp_path / "saved"
        download.value.save_as(path)
        with path.open(encoding="utf-8", newline="") as file:
            if form == "NDJSON":
                found = [json.loads(line) for line in file]
                assert [m["seq"] for m in found] == list(range(1, 601, 7))
                assert found[0]["data"] == {"n": 0, "huge": HUGE, "text": f"={EVIL}"}
            else:
                rows = list(csv.DictReader(file))
                assert [int(r["seq"]) for r in rows] == list(range(1, 601, 7))
                assert json.loads(rows[0]["data"])["huge"] == HUGE

    def test_live_tail_with_a_filter(self, tab: Tab, shop: headgate.Headgate) -> None:
        stream = shop.stream("filtered.tail", create=True)
        tab.open("/messages?stream=filtered.tail&tail=on&key=a.>&text=wanted")
        expect(tab.page.locator("main")).to_contain_text("Waiting for what comes")
        stream.send_batch([Outgoing("wanted", key="b.1"), Outgoing("other", key="a.1"), Outgoing("Wanted!", key="a.2")])
        expect(tab.page.locator("tbody tr")).to_have_count(1)
        expect(tab.page.locator("tbody")).to_contain_text("Wanted!")


def test_what_holds_a_key_up(tab: Tab) -> None:
    tab.open("/streams/payments/consumers/ledger?tab=key")
    tab.page.get_by_label("Key").fill("same")
    tab.page.get_by_label("Key").press("Enter")
    expect(tab.page.locator("main")).to_contain_text("Message 1 holds the others up.")
    expect(tab.page.locator("tbody tr")).to_have_count(3)
    tab.page.get_by_label("Key").fill("none")
    tab.page.get_by_label("Key").press("Enter")
    expect(tab.page.locator("main")).to_contain_text("Nothing of this key waits")


def test_a_filter_is_tried_before_it_is_set(tab: Tab, shop: headgate.Headgate) -> None:
    stream = shop.stream("tried", create=True)
    consumer = stream.consumer("c", create=True)
    stream.send_batch(Outgoing(n, key=f"orders.{'eu' if n % 4 else 'us'}") for n in range(12))
    tab.open("/streams/tried/consumers/c")
    tab.button("Limits…").click()
    tab.question.get_by_label("Filter").fill("orders.us, refunds.>")
    tab.question.get_by_role("button", name="Try it").click()
    expect(tab.question).to_contain_text("3 of 12 would come.")
    tab.question.get_by_label("Filter").fill("..")
    tab.question.get_by_role("button", name="Try it").click()
    expect(tab.question.locator(".warn")).to_be_visible()
    tab.question.get_by_label("Filter").fill("orders.us")
    tab.confirm("Change them", "Changed: filter.")
    assert [m.data for m in receive(consumer, 3)] == [0, 4, 8]
    tab.forgive("422")


def test_a_large_group_of_dead_letters_goes_in_steps(tab: Tab, shop: headgate.Headgate) -> None:
    stream = shop.stream("many.dead", create=True)
    consumer = stream.consumer("c", create=True, max_deliver=1)
    stream.send_batch(list(range(1100)))
    for m in receive(consumer, 1100):
        m.nack(error=f"timeout after {m.data} ms")
    calls: list[str] = []
    tab.page.on("request", lambda r: calls.append(r.url) if r.url.endswith("/redrive") else None)
    tab.open("/dead")
    tab.page.locator("tbody tr", has_text="many.dead").get_by_role("link").click()
    tab.page.locator(".fold").click()
    expect(tab.page.locator("tbody tr")).to_have_count(50)
    tab.page.locator(".group").get_by_role("button", name="Redrive", exact=True).first.click()
    tab.confirm("Redrive", "1,100 were redriven")
    assert len(calls) == 3
    assert len(receive(consumer, 1100)) == 1100
    expect(tab.page.locator("main")).to_contain_text("There are none.")


class TestBeginning:
    @pytest.fixture
    def page(self, browser: Browser, cluster: Cluster, tmp_path: Path) -> Iterator[Page]:
        with (
            new_database(cluster) as url,
            replica(url, tmp_path, "push=off", "environment=production:red") as server,
            browser.tab(server.url, None) as tab,
        ):
            tab.page.get_by_label("Token").fill(server.token)
            tab.button("Log in").click()
            yield tab.page

    def test_a_test_message(self, page: Page) -> None:
        expect(page.get_by_role("heading", name="Nothing here yet")).to_be_visible()
        expect(page.locator("main")).to_contain_text("headgate stream add orders")
        expect(page.locator(".place")).to_have_text("production")
        page.get_by_role("button", name="Send a test message").click()
        expect(page.get_by_role("heading", name="hello")).to_be_visible()
        expect(page.locator("main")).to_contain_text("It works.")
        page.get_by_role("link", name="Overview").click()
        expect(page.locator("main")).to_contain_text("me hello")
