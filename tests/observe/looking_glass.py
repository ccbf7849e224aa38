"""What an app shows, as text; and whether that is what it showed before."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from textual.app import App

KEPT = Path(__file__).parent / "screens"
WRITE = "HEADGATE_WRITE_SCREENS"  # set it to keep what is shown now
# what differs from one run to the next, put in the place of it
VARYING = (
    (r"\d\d:\d\d:\d\d", "hh:mm:ss"),
    (r"[▁▂▃▄▅▆▇█]", " "),
    (r"backlog (?:gone in \S+|does not shrink)|by \S+-\d+\b", "…"),
    (r"(?<![\w.])\d+s(?: ago)?(?!\w)|\bin \d+[smh]\b|\bnow\b|\d+[mh] ago", "…"),  # how long ago
    (r"\d[\d.,]* [KM]iB", "…"),
    (r"(?<![\w.:,])(?:\d+\.\d|0)(?![\w.])", "…"),  # rates, which fade away
)  # fmt: skip


def shown(app: App[None]) -> str:
    """The whole screen, a line of text for each of its lines."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def settled(text: str) -> list[str]:
    """Its words, without what differs from one run to the next and where that breaks lines."""
    flat = " ".join(text.split())
    for pattern, calm in VARYING:
        flat = re.sub(pattern, calm, flat)
    return flat.split()


def same_as_kept(name: str, text: str) -> bool:
    """Whether this screen is the one that is kept."""
    file = KEPT / f"{name}.txt"
    if os.environ.get(WRITE):
        file.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
    return settled(text) == settled(file.read_text(encoding="utf-8"))


def box(text: str) -> str:
    """What stands in the box above a screen."""
    return "\n".join(re.findall(r"[│╭╰].*[│╮╯]", text))


async def until(condition: Callable[[], object], seconds: float = 30, app: App[None] | None = None) -> None:
    """Waits for what nobody tells a test about."""
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("gave up waiting" + (f":\n{shown(app)}" if app is not None else ""))
