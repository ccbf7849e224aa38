"""Where `headgate up` serves in this folder: it leaves a note of that beside its token, for --as-curl."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def home() -> Path:
    """The directory of the private PostgreSQL, the first token and this note."""
    return Path(os.environ.get("HEADGATE_EMBEDDED_DIR") or ".headgate").expanduser()


@contextmanager
def noted() -> Iterator[Path]:
    """The file of the note, which is removed at the end if it is ours."""
    file = home() / "server.json"
    try:
        yield file
    finally:
        with suppress(OSError, ValueError):
            if json.loads(file.read_text(encoding="utf-8"))["pid"] == os.getpid():
                file.unlink()


def note(file: Path, url: str, database: str | None) -> None:
    """Says that this process serves there, for this database (None: the private one). The first one that runs stays."""
    if server_of(database) is not None:
        return
    with suppress(OSError):  # no such directory: nobody looks there
        file.write_text(json.dumps({"pid": os.getpid(), "url": url, "database": _digest(database)}), encoding="utf-8")


def server_of(database: str | None) -> str | None:
    """Where the server of this folder is, if one runs and it is for this database."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((home() / "server.json").read_text(encoding="utf-8"))
        if found["database"] == _digest(database):
            os.kill(found["pid"], 0)  # one that was killed has left its note
            return str(found["url"])
    return None


def _digest(database: str | None) -> str | None:
    """Enough to tell databases apart: there may be a password in the URL."""
    import hashlib

    return None if database is None else hashlib.sha256(database.encode()).hexdigest()[:16]
