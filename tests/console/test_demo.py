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


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_everything_moves_and_one_signal_ends_it(number: int, short_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_path)}
    environment.pop("HEADGATE_DATABASE_URL", None)
    demo = subprocess.Popen(
        [sys.executable, "-m", "headgate", "demo", "--port", "0", "--rate", "3"],
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
