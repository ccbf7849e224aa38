"""Chromium as the tests drive it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Locator, Page, expect, sync_playwright

# Without these Chromium looks for its maker's servers at every start.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PATIENCE = 60_000  # milliseconds, on a machine with other work
LAPTOP = {"width": 1280, "height": 800}


class Tab:
    """A page of the console, and everything that it asked for and complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"{error.name}: {error.message} {error.stack}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} {message.location}")

    def open(self, path: str, title: str | None = None) -> None:
        """A page by what follows #, until it shows what it asked for."""
        self.page.goto(f"{self.url}/#{path}")
        expect(self.page.locator("main h1").first).to_be_visible()
        if title is not None:
            expect(self.page.locator("main h1").first).to_contain_text(title)
        expect(self.page.locator(".loading")).to_have_count(0)

    def button(self, name: str) -> Locator:
        """A button on the page by its whole text."""
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def question(self) -> Locator:
        """What is asked before something is done."""
        return self.page.locator("dialog")

    def confirm(self, action: str, said: str) -> None:
        """Answers the question, and waits until it is said that it was done."""
        self.question.get_by_role("button", name=action, exact=True).click()
        expect(self.page.locator("#notes")).to_contain_text(said)
        expect(self.question).to_have_count(0)

    def forgive(self, part: str) -> None:
        """A complaint that was meant to be."""
        kept = [c for c in self.complaints if part not in c]
        assert kept != self.complaints, f"nothing complains of {part}"
        self.complaints[:] = kept


class Browser:
    """One Chromium, with a fresh profile for each tab."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium

    @classmethod
    @contextmanager
    def started(cls, program: Path) -> Iterator[Browser]:
        """Starts it, and ends it."""
        expect.set_options(timeout=PATIENCE)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=2 * PATIENCE)
            yield cls(chromium)
            chromium.close()

    @contextmanager
    def tab(self, url: str, token: str | None, **more: Any) -> Iterator[Tab]:
        """A tab where the owner of the token is logged in."""
        context = self._chromium.new_context(**{"viewport": LAPTOP, **more})
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        tab = Tab(page, url)
        page.goto(f"{url}/#/login" + (f"?token={token}" if token else ""))
        if token:
            expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        yield tab
        context.close()
        assert not tab.complaints, tab.complaints
        elsewhere = [a for a in tab.asked if not a.startswith((f"{url}/", "data:"))]
        assert not elsewhere, elsewhere
