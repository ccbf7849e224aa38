"""The demo's own server: `headgate up`, which ends when the demo does, however that ended.

Run as a program it is that server: its stdin is a pipe from the demo, and its end says that the demo is gone. One that
was killed has left its directory; then it is removed here, once its PostgreSQL has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ..errors import Error

STARTING = 60.0  # seconds that the server may take
STOPPING = 30.0


@contextlib.asynccontextmanager
async def serving(
    database: str, directory: Path, port: int, stop: asyncio.Event
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server for this database, which may push to this machine; its address, or "" when it is to stop before."""
    arguments = ("up", "--port", str(port), "--processes", "1", "--push-allow", "127.0.0.1")
    log = directory / "server.log"
    # (in a session of its own: Ctrl-C is for the demo, which then stops it)
    with log.open("wb") as said:
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, str(directory), *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=said, start_new_session=True,
            env={**os.environ, "HEADGATE_DATABASE_URL": database, "HEADGATE_EMBEDDED_DIR": str(directory)},
        )  # fmt: skip
    told = asyncio.create_task(_second_line(server))  # the database's URL is the first
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([told, stopped], timeout=STARTING, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            if not told.done():
                raise Error(f"the demo's server did not start in {STARTING:g} s", hint="see how busy the machine is")
            if not told.result():
                why = log.read_text(errors="replace").strip().splitlines()
                raise Error("the demo's server did not start: " + " ".join(why[-2:]), hint="try --port 0: a free one")
        yield (told.result() if told.done() else ""), server
    finally:
        told.cancel()
        stopped.cancel()
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        try:
            await asyncio.wait_for(server.wait(), STOPPING)
        except TimeoutError:
            server.kill()
            await server.wait()


async def _second_line(server: asyncio.subprocess.Process) -> str:
    assert server.stdout is not None
    await server.stdout.readline()
    return (await server.stdout.readline()).decode().strip()


def _watch(is_orphan: threading.Event) -> None:
    while os.read(0, 1):
        pass
    is_orphan.set()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Serve, until it is told to stop or the demo is gone."""
    directory, *arguments = sys.argv[1:]
    sys.argv[1:] = arguments
    is_orphan = threading.Event()
    code = 0
    threading.Thread(target=_watch, args=(is_orphan,), daemon=True).start()
    try:
        runpy.run_module("headgate", run_name="__main__")  # as a program: the command line stands above the demo
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    if is_orphan.is_set() and Path(directory).name.startswith("headgate-demo-"):
        deadline = time.monotonic() + STOPPING
        while (Path(directory) / "data" / "data" / "postmaster.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
