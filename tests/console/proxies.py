"""A proxy that has a server below a path, and takes the path away again, as nginx does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

PASSED = ("content-type", "set-cookie", "etag", "content-security-policy", "cache-control")


@contextmanager
def proxy(server: str, prefix: str) -> Iterator[str]:
    """Its URL, below which the server is."""

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            path = self.path.removeprefix(prefix)
            if path == self.path:
                self.send_error(404)
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "content-length")}
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = httpx.request(self.command, server + path, headers=headers, content=body, timeout=70)
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name in PASSED:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = pass_on  # noqa: N815 - names that the library looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{found.server_port}{prefix}"
        finally:
            found.shutdown()
            thread.join()
