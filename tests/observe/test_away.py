"""What observe says when nothing answers, and that it goes on by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic

import pytest

import headgate
from headgate.observe.app import Observe
from support.postgres import NewCluster
from support.servers import Replica, replica

from .looking_glass import shown, until
from .test_screens import opened

WIDE = (120, 24)


async def test_the_server_goes_and_comes_back(shop: headgate.Headgate, database_url: str, tmp_path: Path) -> None:
    with replica(database_url, tmp_path, "push=off") as first:
        port = int(first.url.rpartition(":")[2])
        remote = headgate.connect(first.url, token=first.token)
        async with opened(remote, WIDE) as (app, _pilot):
            first.process.kill()
            first.process.wait()
            await until(lambda: "AWAY since" in shown(app), app=app)
            text = " ".join(shown(app).split())
            assert f"the connection to the server at {first.url} failed" in text
            assert "This is how it was; it is asked again and again." in text
            assert "analytics" in text
            with replica(database_url, tmp_path, "push=off", port=port):
                await until(lambda: "it answers again" in shown(app), app=app)
                assert "AWAY" not in shown(app)
        remote.close()


async def test_the_database_goes_and_comes_back(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    with headgate.connect(cluster.url(), timeout=2, migrate=True) as hg:
        hg.stream("orders", create=True).consumer("billing", create=True)
        async with opened(hg, WIDE) as (app, _pilot):
            cluster.stop("immediate")
            await until(lambda: "AWAY since" in shown(app), app=app)
            assert "billing" in shown(app)
            cluster.start()
            await until(lambda: "it answers again" in shown(app), 90, app=app)


async def test_a_server_that_hangs_keeps_nobody(server: Replica) -> None:
    remote = headgate.connect(server.url, token=server.token)
    async with opened(remote, WIDE) as (app, pilot):
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await until(lambda: "no answer for" in shown(app), app=app)
            await pilot.press("2")  # what is under way hangs, and the keys do not
            await pilot.press("question_mark")
            await until(lambda: "Words of trouble" in shown(app) or "Act (each" in shown(app), app=app)
            await pilot.press("escape")
            began = monotonic()
            await pilot.press("q")
            await until(lambda: not app.is_running, app=app)
            assert monotonic() - began < 20
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


async def test_a_token_that_ends(server: Replica, shop: headgate.Headgate) -> None:
    secret = server.new_token("monitor")
    with headgate.connect(server.url, token=secret) as remote:
        async with opened(remote, WIDE) as (app, _pilot):
            with server.client() as admin:
                [one] = [t for t in admin.get("/api/tokens").json()["data"] if t["name"] == "t"]
                assert admin.delete(f"/api/tokens/{one['id']}").is_success
            await until(lambda: "AWAY since" in shown(app), app=app)
            assert "token" in shown(app)


@pytest.mark.parametrize("gone", ["stream", "consumer"])
async def test_what_is_looked_at_is_dropped(shop: headgate.Headgate, gone: str) -> None:
    async with opened(shop, WIDE) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: "card of cus_1 declined" in shown(app), app=app)
        if gone == "stream":
            shop.stream("orders").drop()
        else:
            shop.stream("orders").consumer("billing").drop()
        app.look_now()
        await until(lambda: "AWAY" in shown(app) and "orders" in shown(app), app=app)
        await pilot.press("escape")
        await until(lambda: "Sources" in shown(app) and "analytics" in shown(app) and "AWAY" not in shown(app), app=app)
        assert isinstance(app, Observe)
