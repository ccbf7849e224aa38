"""Stops a private PostgreSQL that nobody uses any more, however its users ended: a process that is killed cannot.

`embedded` starts this file as a program, with the standard library alone, in the directory of the server, so that it
goes along when that is moved. It waits for the locks of the participants and takes no processor time meanwhile; file
descriptor 3 is the lock that says there is a guard.
"""

import fcntl
import os
import signal
import socket
import time
from contextlib import closing, suppress
from pathlib import Path

GUARD = 3
STOP_SECONDS = 60
PID_FILE = Path("data/postmaster.pid")


def guard() -> None:
    while True:
        lock = os.open("lock", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        alive = participant()
        if alive is None:
            stop()
            os.close(GUARD)  # before the lock: who joins next finds no guard, and starts one
            return
        os.close(lock)
        fcntl.flock(alive, fcntl.LOCK_EX)  # comes back when its process has ended or left
        os.close(alive)


def participant() -> int | None:
    """The file of somebody who uses the server. Files of those who ended, whose locks can be had, are removed."""
    for place in Path("participants").iterdir():
        file = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return file
        place.unlink()
        os.close(file)
    return None


def stop() -> None:
    """Have the server end, if there is one, and wait for that: SIGINT is PostgreSQL's fast shutdown."""
    pid = running()
    if pid is None:
        return
    os.kill(pid, signal.SIGINT)
    until = time.monotonic() + STOP_SECONDS
    while PID_FILE.exists() and time.monotonic() < until:
        time.sleep(0.02)


def running() -> int | None:
    """The server's process id. That it answers shows that its pid file is not one which a crash has left behind."""
    try:
        lines = PID_FILE.read_text().splitlines()
        pid, socket_name = int(lines[0]), f".s.PGSQL.{int(lines[3])}"
    except (OSError, ValueError, IndexError):
        return None
    for directory in ("run", lines[4]):  # where it is kept, also after a move; or in the temporary directory
        with closing(socket.socket(socket.AF_UNIX)) as probe:
            if probe.connect_ex(f"{directory}/{socket_name}") == 0:
                return pid
    return None


if __name__ == "__main__":
    if os.fork():  # whoever started this is not to wait for it, nor to be left with its remains
        os._exit(0)
    with suppress(OSError):  # the directory was deleted: the server notices that by itself
        guard()
