"""Tokens of the HTTP server: how they are made and compared. Their rows are in the database, their secrets nowhere."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple


class NewToken(NamedTuple):
    """A token as it is shown once: `<id>.<secret>`; of the secret only the digest is stored."""

    id: str
    text: str
    digest: bytes


def new_token() -> NewToken:
    """A token that nobody has."""
    id, secret = "hg_" + secrets.token_hex(8), secrets.token_urlsafe(32)
    return NewToken(id, f"{id}.{secret}", digest(secret))


def digest(secret: str) -> bytes:
    """What is stored of a secret. It has 256 random bits, so that a plain hash is enough."""
    return hashlib.sha256(secret.encode()).digest()
