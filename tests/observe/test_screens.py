"""`headgate observe` in the hands of somebody: lists, what opens, what is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

import headgate
from headgate.observe.app import Observe
from headgate.observe.dialogs import Ask, Help
from headgate.observe.opened import ConsumerScreen, MessageScreen, StreamScreen
from headgate.observe.tables import Grid
from support.servers import Replica

from .looking_glass import box, same_as_kept, shown, until

SMALL, LARGE = (80, 24), (120, 40)


@asynccontextmanager
async def opened(hg: headgate.Headgate, size: tuple[int, int] = SMALL) -> AsyncIterator[tuple[Observe, Pilot[None]]]:
    """An app that has seen something."""
    app = Observe(hg)
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.overview.last is not None and app.overview.query_one("#list", Grid).row_count)
        yield app, pilot


async def press(app: Observe, pilot: Pilot[None], key: str, expect: str) -> None:
    """A key, after which this is to be seen."""
    await pilot.press(key)
    try:
        await until(lambda: expect in shown(app))
    except AssertionError as error:
        raise AssertionError(f"{expect!r} did not come after {key}:\n{shown(app)}") from error


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_what_is_seen(shop: headgate.Headgate, size: tuple[int, int]) -> None:
    seen, boxes = {}, {}
    async with opened(shop, size) as (app, pilot):
        app.place = "the shop"
        app.look_now()
        await until(lambda: "the shop" in shown(app) and "Quit" in shown(app), app=app)
        if size == LARGE:
            await until(lambda: app.overview.query_one("#flow", Grid).row_count == 10 + 3, app=app)  # dead letters, too
        seen["consumers"] = shown(app)
        keys = app.overview.query_one("#list", Grid).keys
        for key, name, expect in (
            ("2", "streams", "orders.dead"), ("3", "messages", "orders\x1f1"),
            ("4", "tenants", "orders\x1fbilling\x1facorn"), ("5", "sources", "hooks"),
        ):  # fmt: skip
            await pilot.press(key)
            await until(lambda expect=expect: expect in keys(), app=app)  # type: ignore[misc]
            await pilot.pause()
            seen[name] = shown(app)
        await pilot.press("1")
        await until(lambda: "clicks\x1fanalytics" in keys(), app=app)
        await press(app, pilot, "enter", "card of cus_1 declined")
        seen["consumer"] = shown(app)
        await press(app, pilot, "enter", "became a dead letter")
        seen["message"] = shown(app)
        await press(app, pilot, "escape", "Tenants")
        await press(app, pilot, "escape", "analytics")
        await pilot.press("2")
        await until(lambda: "orders.dead" in keys(), app=app)
        await pilot.press("down", "enter")
        await until(lambda: isinstance(app.screen, StreamScreen) and "billing" in shown(app))
        seen["stream"] = shown(app)
        await press(app, pilot, "escape", "Sources")
        await press(app, pilot, "question_mark", "Words of trouble" if size == LARGE else "Act (each asks first)")
        boxes["help"] = box(shown(app))
        await pilot.press("escape", "1")
        await until(lambda: "clicks\x1fanalytics" in keys(), app=app)
        await press(app, pilot, "d", "Redrive all 3 dead letters")
        boxes["question"] = box(shown(app))
        await pilot.press("n")
    width, height = size
    for name, text in seen.items():
        assert [len(line) for line in text.splitlines()] == [width] * height, name
    seen |= boxes
    wrong = [name for name, text in seen.items() if not same_as_kept(f"{name}-{width}x{height}", text)]
    assert wrong == [], "\n\n".join(seen[name] for name in wrong)


@pytest.mark.parametrize("way", ["database", "http"])
async def test_pause_resume_redrive(shop: headgate.Headgate, way: str, request: pytest.FixtureRequest) -> None:
    hg = shop if way == "database" else request.getfixturevalue("remote")
    billing = shop.stream("orders").consumer("billing")
    async with opened(hg) as (app, pilot):
        await press(app, pilot, "p", "Pause billing of orders?")
        await pilot.press("n")
        await until(lambda: not isinstance(app.screen, Ask))
        assert not billing.info().paused
        await press(app, pilot, "p", "Pause billing of orders?")
        await press(app, pilot, "y", "billing is paused")
        assert billing.info().paused
        await until(lambda: app.overview.actions()["p"].question.startswith("Resume"))  # type: ignore[union-attr]
        await press(app, pilot, "p", "Resume billing of orders?")
        await press(app, pilot, "y", "billing goes on")
        assert not billing.info().paused
        await until(lambda: app.overview.query_one("#list", Grid).chosen == "orders\x1fbilling")
        await press(app, pilot, "d", "They leave orders.dead")
        await press(app, pilot, "n", "billing goes on")
        assert billing.info().dead == 3
        await press(app, pilot, "d", "They leave orders.dead")
        await press(app, pilot, "y", "3 dead letters of billing were redriven")
        assert billing.info().dead == 0
        await press(app, pilot, "down", "redriven")
        await press(app, pilot, "t", "choose a parked message")


async def test_one_dead_letter_and_one_parked_message(shop: headgate.Headgate) -> None:
    billing = shop.stream("orders").consumer("billing")
    ledger = shop.stream("payments").consumer("ledger")
    async with opened(shop) as (app, pilot):
        await press(app, pilot, "enter", "card of cus_2 declined")
        await press(app, pilot, "t", "only a parked message")
        await press(app, pilot, "d", "Redrive message 1 to billing?")
        await press(app, pilot, "y", "message 1 was redriven")
        assert [d.source_seq for d in billing.dead_letters()] == [2, 3]
        await pilot.press("escape")
        app.push_screen(ConsumerScreen("payments", "ledger"))
        await until(lambda: "account is locked" in shown(app))
        await press(app, pilot, "enter", "attempt 1 failed, the next one is due")
        await press(app, pilot, "escape", "account is locked")
        await press(app, pilot, "t", "Try message 1 again now?")
        await press(app, pilot, "y", "message 1 is due now")
        assert [m.seq for m in ledger.receive(5, wait=10)] == [1]


async def test_why_a_message_waits(shop: headgate.Headgate) -> None:
    async with opened(shop) as (app, pilot):
        for seq, why in ((2, "waits for message 1 of the same key"), (3, "waits for message 1 of the same key")):
            app.push_screen(MessageScreen("payments", seq))
            await until(lambda why=why: why in shown(app))  # type: ignore[misc]
            await pilot.press("escape")
        app.push_screen(MessageScreen("orders", 6))
        await until(lambda: "nobody receives" in shown(app) or "it is one of 3 that wait" in shown(app))
        assert "the consumer is paused" in shown(app)
        await pilot.press("escape")
        app.push_screen(MessageScreen("orders", 99))
        await until(lambda: "not in the stream any more" in shown(app))


async def test_filter_and_sort(shop: headgate.Headgate) -> None:
    async with opened(shop) as (app, pilot):
        await pilot.press("slash", *"led")
        await press(app, pilot, "enter", "with led")
        await until(lambda: app.overview.query_one("#list", Grid).row_count == 1)
        assert "dead 3" in shown(app)  # totals are of all
        await pilot.press("slash", *"zzz")
        await press(app, pilot, "enter", 'nothing has "zzz" in its name')
        await pilot.press("escape")
        await until(lambda: app.overview.query_one("#list", Grid).row_count == 4)
        await press(app, pilot, "s", "by name")
        await until(lambda: app.overview.last is not None and app.overview.last[1].lines[0].info.stream == "clicks")
        await press(app, pilot, "2", "by name")
        await press(app, pilot, "s", "by rate")
        await press(app, pilot, "s", "by messages")
        assert app.overview.query_one("#list", Grid).chosen is not None


async def test_frozen_and_again(shop: headgate.Headgate) -> None:
    async with opened(shop) as (app, pilot):
        await press(app, pilot, "space", "frozen")
        before = app.overview.last
        shop.stream("clicks").send({"page": "/new"})
        await pilot.press("r")
        await pilot.pause(0.3)
        assert app.overview.last is before
        await pilot.press("space")
        await until(lambda: app.overview.last is not before)
        assert "frozen" not in shown(app)


async def test_the_cursor_stays_with_its_row(shop: headgate.Headgate) -> None:
    async with opened(shop) as (app, pilot):
        grid = app.overview.query_one("#list", Grid)
        await pilot.press("down", "down", "down")
        assert (grid.chosen, grid.cursor_row) == ("clicks\x1fanalytics", 3)
        shop.stream("clicks").consumer("analytics").pause()  # it moves up the list
        app.look_now()
        await until(lambda: (grid.chosen, grid.cursor_row) == ("clicks\x1fanalytics", 2))


async def test_any_size(shop: headgate.Headgate) -> None:
    async with opened(shop) as (app, pilot):
        for width, height in ((40, 10), (200, 60), (20, 5), (80, 24)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.3)
            assert [len(line) for line in shown(app).splitlines()] == [width] * height
        assert "analytics" in shown(app)


async def test_help_lists_every_key(shop: headgate.Headgate) -> None:
    async with opened(shop, (100, 60)) as (app, pilot):
        await press(app, pilot, "question_mark", "Words of trouble")
        assert isinstance(app.screen, Help)
        text = shown(app)
        for key in ("Enter", "Esc", "Space", " s ", " / ", " r ", " p ", " d ", " t ", " l ", " ? ", " q "):
            assert key in text


async def test_a_token_that_looks_only(server: Replica, shop: headgate.Headgate) -> None:
    with headgate.connect(server.url, token=server.new_token("monitor")) as watching:
        async with opened(watching, (120, 30)) as (app, pilot):
            await until(lambda: "looks only" in shown(app))
            for key in "pd":
                await press(app, pilot, key, "this token may look, not act: it has no scope admin.")
                assert not isinstance(app.screen, Ask)
            assert not shop.stream("orders").consumer("billing").info().paused
    with headgate.connect(server.url, token=server.new_token("monitor", streams=["payments"])) as bound:
        async with opened(bound, (120, 30)) as (app, pilot):
            assert app.overview.last is not None
            assert {line.info.stream for line in app.overview.last[1].lines} == {"payments"}
            await press(app, pilot, "5", "streams")


async def test_a_role_that_looks_only(shop: headgate.Headgate, database_url: str) -> None:
    shop.run("create role eyes login in role headgate_monitor")
    try:
        with headgate.connect(database_url.replace("postgres@", "eyes@", 1)) as watching:
            async with opened(watching, (120, 30)) as (app, pilot):
                await press(app, pilot, "p", "this database role may look, not act")
    finally:
        shop.run("drop role eyes")
