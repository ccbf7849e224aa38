"""`headgate observe`: over a database and over HTTP, once for scripts and live for people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

import headgate
from headgate.observe.looking import look
from support.command_line import CommandLine
from support.servers import Replica

from .shop import receive

textual = pytest.importorskip("textual", reason="pip install 'headgate[observe]'")


@pytest.fixture
def failing(hg: headgate.Headgate) -> headgate.Headgate:
    stream = hg.stream("orders", create=True)
    stream.consumer("fine", create=True)
    broken = stream.consumer("broken", create=True, max_deliver=1)
    stream.send_batch([{"n": n} for n in range(3)])
    for m in receive(broken, 3):
        m.nack(error="[red]no[/red] such user")
    for m in receive(stream.consumer("fine"), 3):
        m.ack()
    return hg


def test_once_for_scripts(failing: headgate.Headgate, run: CommandLine) -> None:
    found = json.loads(run("observe", "--once", "--json").out)
    assert found["totals"]["dead"] == 3
    assert [(c["consumer"], c["trouble"]) for c in found["consumers"]] == [("broken", "dead"), ("fine", "fine")]
    assert "orders/broken" in run("observe", "--once", "--search", "brok").out


def test_the_same_over_http(server: Replica, shop: headgate.Headgate) -> None:
    with headgate.connect(server.url, token=server.token) as remote:
        assert [line.name for line in look(remote).lines] == [line.name for line in look(shop).lines]


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("gave up waiting")


async def test_live_for_people(failing: headgate.Headgate) -> None:
    from textual.widgets import DataTable

    from headgate.observe.app import Ask, Details, Observe

    app = Observe(failing)
    consumers = failing.stream("orders")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.chosen is not None and app.chosen.info.name == "broken")
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, Details) and app.screen.query_one(DataTable).row_count)
        assert app.screen.query_one(DataTable).row_count == 3
        await pilot.press("escape")
        await pilot.press("p")
        await until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await until(lambda: consumers.consumer("broken").info().paused)
        await until(lambda: not isinstance(app.screen, Ask))
        await pilot.press("d")
        await until(lambda: isinstance(app.screen, Ask))
        await pilot.press("n")
        await until(lambda: not isinstance(app.screen, Ask))
        assert consumers.consumer("broken").info().dead == 3
        await pilot.press("d")
        await until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await until(lambda: consumers.consumer("broken").info().dead == 0)
        await pilot.press("s")
        await until(lambda: app.sort == "name")
        await pilot.press("q")
