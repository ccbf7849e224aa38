"""The console's own files, as the package has them: modules, a style sheet, a page. Nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HOME = Path(__file__).parent / "static"
TYPES = {
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# Scripts and styles are files of this server alone: whatever a message says, nothing of it can run or be fetched.
GUARDS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


@dataclass(frozen=True)
class File:
    """A file as it is answered."""

    kind: bytes
    content: bytes
    tag: bytes  # of this content


def index() -> bytes:
    """The page of the console."""
    return (HOME / "index.html").read_bytes()


def find(name: str) -> File | None:
    """A file by its path below `console/`."""
    return _files().get(name)


@cache
def _files() -> dict[str, File]:
    """All of them, once: they fit together, whatever is installed meanwhile."""
    found = {}
    for path in HOME.rglob("*"):
        if (kind := TYPES.get(path.suffix)) is not None:
            content = path.read_bytes()
            tag = b'"%s"' % hashlib.sha256(content).hexdigest()[:16].encode()
            found[path.relative_to(HOME).as_posix()] = File(kind, content, tag)
    return found
