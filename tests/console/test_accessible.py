"""What axe-core says of each page and each question: nothing that is serious, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from support.servers import Replica

from .browser import Browser, Tab
from .pages import PAGES

SERIOUS = ("serious", "critical")
PHONE = {"width": 390, "height": 844}


def findings(tab: Tab) -> list[str]:
    """What is serious, and where: the selector and the reason."""
    found: list[dict[str, Any]] = Axe().run(tab.page).response["violations"]
    return [
        f"{v['id']}: {node['target']} {node['failureSummary']}"
        for v in found
        if v["impact"] in SERIOUS
        for node in v["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages(browser: Browser, server: Replica, scheme: str) -> None:
    with browser.tab(server.url, server.token, color_scheme=scheme) as tab:
        found = {}
        for path, title in PAGES.items():
            tab.open(path, title)
            found[path] = findings(tab)
        assert {path: what for path, what in found.items() if what} == {}


def test_pages_on_a_phone(browser: Browser, server: Replica) -> None:
    with browser.tab(server.url, server.token, viewport=PHONE) as tab:
        for path in ("/", "/streams/orders/consumers/billing", "/messages?stream=orders", "/tenants"):
            tab.open(path)
            assert findings(tab) == [], path
        tab.page.get_by_role("button", name="Menu").click()
        assert findings(tab) == []


def test_the_login(browser: Browser, server: Replica) -> None:
    with browser.tab(server.url, None) as tab:
        expect(tab.page.get_by_label("Token")).to_be_visible()
        assert findings(tab) == []


def asks(path: str, button: str) -> Callable[[Tab], None]:
    """Opens a page and presses a button on it."""

    def go(tab: Tab) -> None:
        tab.open(path)
        tab.button(button).first.click()

    return go


QUESTIONS = {
    "move": asks("/streams/orders/consumers/billing", "Move…"),
    "limits": asks("/streams/orders/consumers/billing", "Limits…"),
    "discard": asks("/streams/orders/consumers/billing", "Discard…"),
    "send": asks("/streams/orders", "Send a message"),
    "new stream": asks("/streams", "New stream"),
    "new token": asks("/tokens", "New token"),
    "jump": lambda tab: (tab.open("/"), tab.page.keyboard.press("/")),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions(tab: Tab, question: str) -> None:
    QUESTIONS[question](tab)
    expect(tab.question).to_be_visible()
    assert findings(tab) == []
    tab.page.keyboard.press("Escape")
