"""Runs the examples of a documentation page as one session, in the order they stand there.

    python session.py PAGE [DATABASE_URL]

The working directory should be empty. With a URL the page finds `hg`, connected to it, and the command line uses it.

What the fences mean:

- ```python is run in one namespace for the whole page. A worker's `name.run()` is stopped, as an operator would, once
  its consumers have nothing left to do. With title="file.py" it is saved under that name instead.
- ```sh is run in one bash for the whole page. With title="Another terminal" it is started beside it, and stopped at the
  end.
- ```sql is run statement by statement on the page's database.
- ```text title="Output" is what the block before it prints. `…` stands for anything.
- <!-- until --> before a block: it is repeated until its output is right.
- <!-- not run: reason --> before a block: it is not run; Python must compile.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import headgate

PATIENCE = 30.0
END = "--- end of block ---"

FENCE = re.compile(
    r"^(?:<!-- (?P<note>until|not run: [^>]+) -->\n)?"
    r"(?P<indent> *)```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """An example and what it should print."""

    page: str
    line: int
    kind: str
    code: str
    title: str | None = None
    note: str | None = None
    output: str | None = None

    @property
    def runs(self) -> bool:
        return self.kind in ("python", "sh", "sql") and not (self.note or "").startswith("not run")


def blocks(page: Path) -> list[Block]:
    """The examples of a page, with the output that follows them."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for m in FENCE.finditer(text):
        code = re.sub(f"^{m['indent']}", "", m["code"], flags=re.MULTILINE)
        if m["kind"] == "text" and m["title"] == "Output":
            assert found, f"{page}: output of nothing"
            found[-1].output = code
            continue
        line = text.count("\n", 0, m.start("code")) + 1
        found.append(Block(page.name, line, m["kind"], code, m["title"], m["note"]))
    return found


def is_right(printed: str, wanted: str | None) -> bool:
    """Whether the output is what the page says, with … for anything and whatever the width of columns."""
    if wanted is None:
        return True
    lines = [re.escape(line).replace("…", ".*") for line in _lines(wanted)]
    return re.fullmatch("\n".join(lines), "\n".join(_lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@dataclass
class Session:
    """What the blocks of a page share."""

    url: str | None
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__", "headgate": headgate})
    beside: list[subprocess.Popen[str]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        with socket.socket() as free:  # the real one may be taken on this machine
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        if self.url is not None:
            os.environ["HEADGATE_DATABASE_URL"] = self.url
            self.names["hg"] = headgate.connect(self.url)
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        os.environ["XDG_CONFIG_HOME"] = str(Path.cwd() / ".config")  # contexts of this page alone
        self.bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, block: Block) -> str:
        """Runs a block; returns what it printed."""
        code = block.code.replace("headgate up", f"headgate up --port {self.port}").replace("7376", str(self.port))
        if block.kind == "python" and block.title:
            Path(block.title).write_text(code, encoding="utf-8")
            return ""
        if block.title == "Another terminal":
            return self._beside(code)
        return {"python": self._python, "sh": self._sh, "sql": self._sql}[block.kind](code)

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            before, *run = re.split(r"^(?=(\w+)\.run\(\) *(?:#.*)?$)", code, maxsplit=1, flags=re.MULTILINE)
            exec(compile(before, "<page>", "exec"), self.names)  # noqa: S102 - that is what this file is for
            if run:
                name, rest = run
                threading.Thread(target=_stop_when_done, args=(self.names[name],), daemon=True).start()
                exec(compile(rest, "<page>", "exec"), self.names)  # noqa: S102
        return printed.getvalue()

    def _sh(self, code: str) -> str:
        assert self.bash.stdin
        assert self.bash.stdout
        self.bash.stdin.write(f"set -e\n{code}\nset +e\necho\necho '{END}'\n")
        self.bash.stdin.flush()
        printed: list[str] = []
        for line in self.bash.stdout:
            if line.strip() == END:
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell ended: {''.join(printed)}")

    def _beside(self, code: str) -> str:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {code.strip()}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.beside.append(process)
        assert process.stdout
        return process.stdout.readline() + process.stdout.readline()

    def _sql(self, code: str) -> str:
        url = self.url or self.names["hg"].url
        lines = []
        with psycopg.connect(url, autocommit=True) as conn:
            for statement in filter(None, (s.strip() for s in re.split(r";(?:[ ]*--[^\n]*)?$", code, flags=re.M))):
                cursor = conn.execute(statement.encode())
                if cursor.description:
                    lines += [" | ".join("" if v is None else str(v) for v in row) for row in cursor]
        return "\n".join(lines)

    def close(self) -> None:
        """Ends what the page has started, the last first."""
        for process in reversed(self.beside):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
        self.bash.communicate("", timeout=PATIENCE)
        if isinstance(hg := self.names.get("hg"), headgate.Headgate):
            hg.close()


def _stop_when_done(worker: headgate.Worker) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(consumer.info().lag for consumer in worker.consumers) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.stop()


@contextlib.contextmanager
def session(url: str | None) -> Iterator[Session]:
    """A session that is closed however it ends."""
    made = Session(url)
    try:
        yield made
    finally:
        made.close()


def main(page: Path, url: str | None) -> None:
    """Runs a page; the error names the line of the block that failed."""
    with session(url) as running:
        for block in blocks(page):
            if not block.runs:
                continue
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    printed = running.run(block).replace(str(running.port), "7376")
                except Exception as error:
                    raise AssertionError(f"{block.page}:{block.line}: {error}") from error
                if is_right(printed, block.output):
                    break
                late = block.note != "until" or time.monotonic() > deadline
                assert not late, f"{block.page}:{block.line} says\n{block.output}\nand it printed\n{printed}"
                time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
