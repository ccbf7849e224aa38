"""Observe in a real terminal: tmux draws what it writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headgate
from support.waiting import wait_until

from .test_hostile import EVIL, is_safe

Tmux = Callable[..., str]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """A terminal of 80 columns and 24 lines, on a server of its own."""
    program = shutil.which("tmux")
    if program is None:
        pytest.skip("there is no tmux: apt-get install tmux")

    def call(*args: str) -> str:
        done = subprocess.run(
            [program, "-u", "-S", str(tmp_path / "t"), *args], capture_output=True, text=True, check=False
        )
        return done.stdout

    yield call
    call("kill-server")


def test_in_a_real_terminal(shop: headgate.Headgate, database_url: str, tmux: Tmux) -> None:
    shop.stream("orders").send({EVIL: EVIL}, key=EVIL, channel=EVIL)
    command = f"'{sys.executable}' -m headgate observe --database '{database_url}'; echo ended with $?; sleep 600"
    tmux("new-session", "-d", "-s", "it", "-x", "80", "-y", "24", command)

    def shown() -> str:
        return tmux("capture-pane", "-p", "-t", "it")

    wait_until(lambda: "analytics" in shown() and "Quit" in shown())
    assert "by trouble" in shown()
    tmux("send-keys", "-t", "it", "3")
    wait_until(lambda: "owned" in shown())
    assert is_safe(shown())
    assert "owned" not in tmux("display-message", "-p", "-t", "it", "#{pane_title}")
    tmux("send-keys", "-t", "it", "1")
    wait_until(lambda: "analytics" in shown())
    tmux("send-keys", "-t", "it", "p")
    wait_until(lambda: "Pause billing of orders?" in shown())
    tmux("send-keys", "-t", "it", "y")
    wait_until(lambda: shop.stream("orders").consumer("billing").info().paused)
    tmux("send-keys", "-t", "it", "q")
    wait_until(lambda: "ended with 0" in shown())
