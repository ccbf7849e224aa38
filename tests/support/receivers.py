"""HTTP endpoints for tests of push consumers: they note what comes to them and answer as they are told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headgate.webhooks import new_secret

SECRET = new_secret()


@dataclass
class Post:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        return self.json["data"]


Reply = int | tuple[int, dict[str, str]]


class Receiver:
    """What came to an endpoint. `reply` says how to answer, and may take its time."""

    def __init__(self, reply: Callable[[Post], Reply]) -> None:
        self.reply = reply
        self.posts: list[Post] = []
        self.most_at_once = 0
        self.url = ""
        self._now = 0
        self._lock = threading.Lock()

    @property
    def datas(self) -> list[Any]:
        return [p.data for p in self.posts]

    def push(self, **more: Any) -> dict[str, Any]:
        """The settings of a consumer that pushes here."""
        return {"url": self.url, "secret": SECRET, **more}

    def take(self, post: Post) -> Reply:
        with self._lock:
            self.posts.append(post)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return self.reply(post)
        finally:
            with self._lock:
                self._now -= 1


@contextmanager
def receiver(reply: Callable[[Post], Reply] = lambda post: 204) -> Iterator[Receiver]:
    """An endpoint that runs."""
    found = Receiver(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {k.lower(): v for k, v in self.headers.items()}
            answer = found.take(Post(self.path, headers, body, time.monotonic()))
            status, more = answer if isinstance(answer, tuple) else (answer, {})
            try:
                self.send_response(status)
                for name, value in {"Content-Length": "0", **more}.items():
                    self.send_header(name, value)
                self.end_headers()
            except OSError:
                self.close_connection = True  # whoever asked has gone

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
