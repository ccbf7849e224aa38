"""The HTTP server: its tokens, and the log of administrative calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token, without its secret."""

    id: str
    name: str
    scopes: list[str]
    streams: list[str] | None
    rate_limit: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditInfo:
    """An administrative call: the token and its scopes then, the stream, and what was asked for (no secrets)."""

    id: int
    at: datetime
    who: str
    address: str | None
    action: str
    status: int
    token: str | None
    scopes: list[str] | None
    stream: str | None
    details: dict[str, Any] | None
