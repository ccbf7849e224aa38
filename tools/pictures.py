"""Takes the pictures of the console and of observe in docs/pictures: of `headgate demo`, after some minutes of it.

It needs Chromium and what `make test` installs. `python tools/pictures.py --seconds 240`
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

import headgate
from headgate.observe.app import Observe
from headgate.observe.opened import ConsumerScreen

HERE = Path(__file__).parent.parent / "docs" / "pictures"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE: ViewportSize = {"width": 1180, "height": 740}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LARGEST = 300_000  # bytes of a picture
CELLS = (128, 36)  # of the terminal


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """A shop that moves: its URL and token."""
    command = [sys.executable, "-m", "headgate", "demo", "--own", "--port", "0", "--rate", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url, _, token = process.stdout.readline().strip().partition("/#/login?token=")
            if not token:
                raise SystemExit("the demo did not start")
            yield url, token
        finally:
            process.terminate()


def save(name: str, picture: bytes) -> None:
    """Writes it as WebP, which is small enough without losing anything that is seen."""
    path = HERE / f"{name}.webp"
    Image.open(io.BytesIO(picture)).save(path, "WEBP", quality=88, method=6)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes", flush=True)
    if size > LARGEST:
        raise SystemExit(f"{path.name} is larger than {LARGEST:,} bytes")


def pages(hg: headgate.Headgate) -> dict[str, str]:
    """The addresses of pages that have something to show."""
    waiting = hg.insights.peek("payments", "ledger", 1, states=["parked"], newest_first=True)
    seq = waiting[0].seq if waiting else 1
    return {
        "console-overview": "/",
        "console-consumer": "/streams/orders/consumers/billing",
        "console-message": f"/streams/payments/messages/{seq}",
        "console-dead": "/dead?stream=emails&consumer=sender",
        "console-tenants": "/tenants",
    }


def open_page(page: Page, url: str, path: str) -> None:
    """A page, once it shows what it asked for."""
    page.goto(f"{url}/#{path}")
    page.locator("main h1").first.wait_for()
    page.wait_for_function("!document.querySelector('.loading')")
    page.wait_for_load_state("networkidle")


def take_console(browser: Browser, url: str, token: str) -> None:
    """One picture of each page; the overview in dark, too."""
    with headgate.connect(url, token=token) as hg:
        found = pages(hg)
    for scheme in SCHEMES:
        context = browser.new_context(viewport=SIZE, device_scale_factor=1.5, color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{url}/#/login?token={token}")
        page.locator("main h1").first.wait_for()
        for name in found if scheme == "light" else ["console-overview"]:
            open_page(page, url, found[name])
            if name == "console-dead":
                page.locator(".fold").first.click()
            save(name if scheme == "light" else f"{name}-dark", page.screenshot())
        context.close()


async def draw_observe(url: str, token: str) -> dict[str, str]:
    """The terminal view as SVG, after it has looked for a while: dark and light, and one consumer."""
    app = await asyncio.to_thread(lambda: Observe(headgate.connect(url, token=token)))
    async with app.run_test(size=CELLS) as pilot:
        for _ in range(40):
            await pilot.pause(0.5)
        drawn = {"observe-dark": app.export_screenshot(title="headgate observe")}
        await pilot.press("l")
        await pilot.pause(1)
        drawn["observe"] = app.export_screenshot(title="headgate observe")
        await pilot.press("l")
        app.push_screen(ConsumerScreen("payments", "ledger"))
        await pilot.pause(5)
        drawn["observe-consumer"] = app.export_screenshot(title="headgate observe")
        return drawn


def take_observe(browser: Browser, name: str, svg: str) -> None:
    """A picture of it, drawn with a font of this machine: none is loaded from elsewhere."""
    own = re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_content(f"<body style='margin:0'>{own}</body>")
    save(name, page.locator("svg").first.screenshot(omit_background=True))


def main() -> int:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240, help="for how long the demo runs before")
    parser.add_argument("--url", help="of a demo that runs, with --token: then none is started")
    parser.add_argument("--token")
    asked = parser.parse_args()
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    if asked.url:
        take(program, asked.url, asked.token)
        return 0
    with demo() as (url, token):
        time.sleep(asked.seconds)
        take(program, url, token)
    return 0


def take(program: str, url: str, token: str) -> None:
    """All of them."""
    drawn = asyncio.run(draw_observe(url, token))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        take_console(browser, url, token)
        for name, svg in drawn.items():
            take_observe(browser, name, svg)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
