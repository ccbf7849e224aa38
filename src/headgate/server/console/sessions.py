"""Browsers: the console's login, a cookie that scripts cannot read, and which requests it counts for.

The cookie holds the token itself, so that replicas share nothing and a revoked token ends its sessions. It counts only
for requests with a header that no other site's page can have sent along, and that the browser calls our own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..http.errors import Problem

HEADER = b"x-headgate-console"
LASTS = 7 * 24 * 3600  # seconds
_NAME = "headgate_"


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Cookies are shared by all ports of a host: each has its own."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return _NAME + (port.decode() if port.isdigit() and len(port) < 6 else "0")


def authorization(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The Authorization header that a browser's cookie stands for. 403 for what another site's page asks."""
    name = cookie_name(headers).encode()
    for pair in headers.get(b"cookie", b"").split(b";"):
        known, _, value = pair.strip().partition(b"=")
        if known == name and value:
            refuse_foreign(headers)
            return b"Bearer " + value
    return None


def refuse_foreign(headers: Mapping[bytes, bytes]) -> None:
    """403 unless the request comes from the console's own page."""
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    if site is not None:
        is_ours = site == b"same-origin"
    else:  # an older browser, or plain http to another machine
        is_ours = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower()
    if HEADER not in headers or not is_ours:
        raise Problem(
            403, "foreign_page", "a cookie counts only for requests of the console's own page",
            "send Authorization: Bearer <token>",
        )  # fmt: skip


def set_cookie(headers: Mapping[bytes, bytes], token: str) -> tuple[bytes, bytes]:
    """The header that keeps a browser logged in; with an empty token, that ends it.

    Without a Path it holds below where the login was: behind a proxy, that is the prefix which the browser sees.
    """
    lasts = LASTS if token else 0
    secure = "; Secure" if headers.get(b"origin", b"").startswith(b"https:") else ""
    text = f"{cookie_name(headers)}={token}; HttpOnly; SameSite=Strict; Max-Age={lasts}{secure}"
    return b"set-cookie", text.encode("ascii")
