"""Pipelines in processes of their own, which are killed in the middle of their work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

DEADLINE = 240.0


HERE = ("--master", "local[2]")


def run_pipeline(directory: Path, url: str, text: str, *where: str) -> str:
    """Runs a pipeline to its end, in a process of its own; returns what it said."""
    file = directory / "pipeline.toml"
    file.write_text(text)
    return run_and_kill(file, url, after=None, where=where)


def run_and_kill(file: Path, url: str, *, after: int | None, delay: float = 0.0, where: Sequence[str] = HERE) -> str:
    """Runs `headgate pipeline run FILE`; with `after` it is killed with -9, so many batches and a moment later.

    Returns what it said. Its children (the JVM, Python workers) are killed with it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "pipeline", "run", str(file), *where], cwd=file.parent,
        env={**os.environ, "HEADGATE_DATABASE_URL": url}, text=True, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    late = threading.Timer(DEADLINE, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    said, batches = [], 0
    try:
        for line in process.stderr:
            said.append(line)
            batches += line.startswith("batch ")
            if after is not None and batches >= after:  # its first line is of the JVM: no batch yet
                threading.Event().wait(delay)  # any point of a batch is as good as another
                break
        else:
            assert process.wait(30) == 0, "".join(said)
    finally:
        late.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    return "".join(said)
