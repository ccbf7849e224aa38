"""`headgate demo`: everything moves, and one signal ends all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from support.waiting import wait_until


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in which the path of a socket is short enough for one."""
    with tempfile.TemporaryDirectory(prefix="hg-") as made:
        yield Path(made)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_everything_moves_and_one_signal_ends_it(number: int, short_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_path)}
    environment.pop("HEADGATE_DATABASE_URL", None)
    demo = subprocess.Popen(
        [sys.executable, "-m", "headgate", "demo", "--own", "--port", "0", "--rate", "3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        assert demo.stdout
        place = demo.stdout.readline().strip()
        url, _, token = place.partition("/#/login?token=")
        assert token, place or demo.stderr
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:

            def consumers(stream: str) -> dict[str, dict[str, object]]:
                return {c["name"]: c for c in http.get(f"/api/streams/{stream}/consumers").json()["data"]}

            def is_moving() -> bool:
                orders, emails = consumers("orders"), consumers("emails")
                sources = http.get("/api/sources").json()["data"]
                return (
                    all(orders[c]["delivered"] for c in ("billing", "search", "shipping"))
                    and not orders["vip-desk"]["delivered"]
                    and bool(emails["sender"]["parked"] or emails["sender"]["dead"])
                    and bool(consumers("stock")["prices"]["delivered"])
                    and all(s["postgres"]["state"] == "reading" for s in sources)
                )

            wait_until(is_moving, 120)
        children = psutil.Process(demo.pid).children(recursive=True)
        assert children
        demo.send_signal(number)
        assert demo.wait(60) == 0
        psutil.wait_procs(children, timeout=30)
        assert [c for c in children if c.is_running()] == []
        assert list(short_path.glob("headgate-demo-*")) == []
    finally:
        for process in psutil.Process(demo.pid).children(recursive=True) if demo.poll() is None else ():
            process.kill()
        demo.kill()
        demo.wait()


def test_nothing_is_left_of_one_that_was_killed(short_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_path)}
    environment.pop("HEADGATE_DATABASE_URL", None)
    demo = subprocess.Popen(
        [sys.executable, "-m", "headgate", "demo", "--own", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        assert demo.stdout
        assert "login?token=" in demo.stdout.readline()
        children = psutil.Process(demo.pid).children(recursive=True)
        assert children
    finally:
        demo.kill()
        demo.wait()
    gone, left = psutil.wait_procs(children, timeout=90)
    assert (left, len(gone)) == ([], len(children))
    wait_until(lambda: not list(short_path.glob("headgate-demo-*")))


def test_its_server_ends_and_so_does_it(short_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_path)}
    environment.pop("HEADGATE_DATABASE_URL", None)
    demo = subprocess.Popen(
        [sys.executable, "-m", "headgate", "demo", "--own", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        assert demo.stdout
        assert "login?token=" in demo.stdout.readline()
        server = next(c for c in psutil.Process(demo.pid).children() if "headgate.demo.serving" in c.cmdline())
        server.kill()
        _, said = demo.communicate(timeout=60)
        assert demo.returncode == 1
        assert "the demo's server has ended" in said
        assert list(short_path.glob("headgate-demo-*")) == []
    finally:
        demo.kill()
        demo.wait()


def test_the_shop_opens_beside_a_server_that_runs(short_path: Path) -> None:
    environment = {**os.environ, "HEADGATE_EMBEDDED_DIR": str(short_path / "home")}
    environment.pop("HEADGATE_DATABASE_URL", None)
    program = [sys.executable, "-m", "headgate"]
    up = subprocess.Popen(
        [*program, "up", "--port", "0", "--processes", "1", "--push-allow", "127.0.0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    try:
        assert up.stdout
        up.stdout.readline()
        url = up.stdout.readline().strip()
        demo = subprocess.Popen(
            [*program, "demo", "--rate", "3"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert demo.stdout
        place, _, token = demo.stdout.readline().strip().partition("/#/login?token=")
        assert place == url
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:

            def of(consumer: str) -> dict[str, object]:
                found: dict[str, object] = http.get(f"/api/streams/orders/consumers/{consumer}").json()["data"]
                return found

            wait_until(lambda: of("shipping")["delivered"] and of("billing")["delivered"])
            demo.send_signal(signal.SIGINT)
            _, said = demo.communicate(timeout=60)
            assert demo.returncode == 0
            assert "Traceback" not in said
            assert "demo --remove" in said
            assert of("shipping")["paused"]
            assert http.get("/api/sources").json()["data"] == []
            done = subprocess.run([*program, "demo", "--remove"], capture_output=True, text=True, env=environment)
            assert done.stdout == "removed orders, payments, emails, clicks, stock\n", done.stderr
            assert http.get("/api/streams").json()["data"] == []
    finally:
        up.terminate()
        up.wait(60)
