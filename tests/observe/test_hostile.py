"""What others write must not reach the terminal raw: it could move the cursor, set a title, or hide what is there."""

from __future__ import annotations

import json
import unicodedata

import pytest

import headgate
from headgate import Outgoing
from headgate.observe.opened import ConsumerScreen, MessageScreen, StreamScreen
from support.command_line import CommandLine

from .looking_glass import shown, until
from .test_screens import opened

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\n\x08\x9b1A\u202ereversed\u200b [bold]markup[/bold] \x7f"
SPELT = r"\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def hostile(hg: headgate.Headgate) -> headgate.Headgate:
    """Escape sequences wherever a producer or worker can write, values of a megabyte, and bytes."""
    stream = hg.stream("orders", create=True, lane_by="channel", max_message_bytes=4_000_000)
    broken = stream.consumer("broken", create=True, max_deliver=1)
    slow = stream.consumer("slow", create=True)
    stream.send_batch([
        Outgoing({EVIL: EVIL}, key=EVIL, channel=EVIL, headers={"note": EVIL}),
        Outgoing("x" * 1_000_000 + EVIL, key="large"),
        Outgoing(bytes(range(256)) * 400, key="bytes"),
        Outgoing({"deep": [[[[["n"] * 5000]]]], "wide": "漢字 \U0001f600 e\u0301" * 50}, key="漢字" * 40),
    ])  # fmt: skip
    for m in broken.receive(4, worker=EVIL):
        m.nack(error=EVIL * 3)
    for m in slow.receive(1, worker=EVIL):
        m.nack(delay=3600, error=EVIL)
    return hg


def is_safe(text: str) -> bool:
    """Whether nothing in it controls a terminal or its direction."""
    return not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn")]


async def test_nothing_reaches_the_terminal_raw(hostile: headgate.Headgate) -> None:
    screens = [StreamScreen("orders"), ConsumerScreen("orders", "broken"), ConsumerScreen("orders", "slow")]
    async with opened(hostile, (120, 40)) as (app, pilot):
        await until(lambda: "large" in shown(app), app=app)
        assert is_safe(shown(app))
        assert SPELT in shown(app)
        for key, expect in (("3", "owned"), ("4", "owned")):
            await pilot.press(key)
            await until(lambda expect=expect: expect in shown(app), app=app)  # type: ignore[misc]
            assert is_safe(shown(app))
        for screen in [*screens, *(MessageScreen("orders", seq) for seq in (1, 2, 3, 4))]:
            app.push_screen(screen)
            await until(lambda screen=screen: app.screen is screen and app._asked is None, app=app)  # type: ignore[misc]
            for key in ("end", "tab", "home", "p", "n", "d", "n"):
                await pilot.press(key)
                assert is_safe(shown(app)), repr(shown(app))
        app.screen.query_one("#told").scroll_end(animate=False)
        app.place = "x"
        assert len(shown(app).splitlines()) == 40


async def test_bytes_and_large_values_say_how_much_there_is(hostile: headgate.Headgate) -> None:
    async with opened(hostile, (120, 90)) as (app, _pilot):
        app.push_screen(MessageScreen("orders", 3))
        await until(lambda: "102,400 bytes" in shown(app), app=app)
        assert "0010  10 11 12 13" in shown(app)


def test_one_look_is_safe_too(hostile: headgate.Headgate, run: CommandLine) -> None:
    assert is_safe(run("observe", "--once").out)
    assert json.loads(run("observe", "--once", "--json").out)["totals"]["dead"] == 4
