"""HTTP servers for tests: real processes on a free port of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass
class Replica:
    """A server that runs."""

    url: str
    token: str
    process: subprocess.Popen[str]

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A client with a token: the administrator's, unless another one is given."""
        headers = {"Authorization": f"Bearer {token or self.token}"} if token or self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=70, **options)

    def new_token(self, *scopes: str, **more: Any) -> str:
        with self.client() as admin:
            return str(data(admin.post("/api/tokens", json={"name": "t", "scopes": list(scopes), **more}))["token"])


@contextmanager
def replica(database_url: str, directory: Path, *options: str, port: int = 0) -> Iterator[Replica]:
    """Starts a server; at the end it is asked to stop, and must."""
    token_file = directory / "token"
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.server.run", database_url, str(port), f"token_file={token_file}", *options],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    try:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert url, "the server did not start"
        yield Replica(url, token_file.read_text().strip() if token_file.exists() else "", process)
        if process.poll() is None:
            process.terminate()
            assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def data(answer: httpx.Response) -> Any:
    """What a call that succeeded answered."""
    assert answer.is_success, answer.text
    return answer.json()["data"]


def drop_stream(client: httpx.Client, stream: str) -> None:
    """Removes a stream; again where the database says so, which maintenance at the same moment can make it."""
    for _ in range(10):
        answer = client.delete(f"/api/streams/{stream}")
        if answer.status_code != 503:
            break
    data(answer)


def error(answer: httpx.Response, status: int) -> str:
    """The code of an error, which must be complete."""
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert set(found) == {"code", "message", "hint"}
    return str(found["code"])


def eventually(path: str, client: httpx.Client, wanted: int, seconds: float = 60) -> list[Any]:
    """Receives until there are so many."""
    got: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(got) < wanted:
        assert time.monotonic() < deadline, f"{len(got)} of {wanted} came"
        got += data(client.get(path, params={"batch_size": 100, "wait_ms": 200}))
    return got
