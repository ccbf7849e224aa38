"""Servers on loopback, each a process of its own as `headgate up` runs one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.errors import Error

_STOP_SECONDS = 20


@dataclass(frozen=True)
class Replica:
    """A server that runs."""

    url: str
    token: str
    pid: int


@contextmanager
def replica(database: str, directory: Path, *, batching: bool = True, processes: int = 1) -> Iterator[Replica]:
    """Starts a server of `database`; it is stopped at the end. Those of one directory share a token."""
    token_file = directory / "token"
    options = [f"token_file={token_file}", f"batching={'on' if batching else 'off'}", f"processes={processes}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.server.run", database, "0", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise Error("the HTTP server did not start", hint="what it wrote to stderr says why")
        yield Replica(url, token_file.read_text(encoding="utf-8").strip(), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
