"""Signatures of webhooks: how ours are made (Standard Webhooks), and how those of others are checked.

Plain functions without I/O; the time is passed in. Secrets never appear in what they raise.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets as randomness
from collections.abc import Mapping, Sequence
from typing import Any

PREFIX = "whsec_"
TOLERANCE = 300.0  # seconds that a timestamp may be off

_ALGORITHMS = {"sha1": hashlib.sha1, "sha256": hashlib.sha256, "sha512": hashlib.sha512}


class BadSignature(Exception):
    """A webhook that is not signed as it should be. The text says why, and nothing that helps to forge one."""


def new_secret() -> str:
    """A secret to sign with."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode("ascii")


def sign(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that Standard Webhooks has: one signature for each secret, so that a secret can be changed."""
    signatures = " ".join(_standard(secret, id, str(timestamp), body) for secret in secrets)
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signatures}


def verify(
    scheme: str,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance: float = TOLERANCE,
    signature: Mapping[str, Any] | None = None,
) -> None:
    """Raises BadSignature unless a webhook is signed with one of the secrets. The names of `headers` are lower case.

    `signature` says where the scheme hmac has it: {"header", "algorithm", "encoding", "prefix"}.
    """
    if scheme == "standard":
        id, timestamp = _header(headers, "webhook-id"), _header(headers, "webhook-timestamp")
        given = _header(headers, "webhook-signature").split(" ")
        _check_time(timestamp, now, tolerance)
        _check(given, [_standard(s, id, timestamp, body) for s in secrets])
    elif scheme == "github":
        _check([_header(headers, "x-hub-signature-256")], ["sha256=" + _hex(s, body) for s in secrets])
    elif scheme == "stripe":
        parts = [p.strip().partition("=") for p in _header(headers, "stripe-signature").split(",")]
        timestamp = next((value for name, _, value in parts if name == "t"), "")
        _check_time(timestamp, now, tolerance)
        signed = timestamp.encode() + b"." + body
        _check([value for name, _, value in parts if name == "v1"], [_hex(s, signed) for s in secrets])
    elif scheme == "hmac":
        about = signature or {}
        given = [_header(headers, str(about.get("header", "")).lower())]
        prefix, algorithm = about.get("prefix") or "", _ALGORITHMS[about.get("algorithm") or "sha256"]
        if not given[0].startswith(prefix):
            raise BadSignature("the signature does not begin as it should")
        bare = given[0].removeprefix(prefix)
        made = [hmac.new(s.encode(), body, algorithm).digest() for s in secrets]
        if (about.get("encoding") or "hex") == "hex":
            _check([bare.lower()], [m.hex() for m in made])
        else:
            _check([bare], [base64.b64encode(m).decode("ascii") for m in made])
    elif scheme != "none":
        raise BadSignature("this source's signatures cannot be checked")


def key_of(secret: str) -> bytes:
    """The key that a secret of Standard Webhooks stands for."""
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise BadSignature("the source's secret is not one of Standard Webhooks") from None


def _standard(secret: str, id: str, timestamp: str, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key_of(secret), signed, "sha256")).decode("ascii")


def _hex(secret: str, signed: bytes) -> str:
    return hmac.digest(secret.encode(), signed, "sha256").hex()


def _header(headers: Mapping[str, str], name: str) -> str:
    found = headers.get(name)
    if not found:
        raise BadSignature(f"the header {name} is missing")
    return found


def _check_time(timestamp: str, now: float, tolerance: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 15):
        raise BadSignature("the timestamp is missing or not a number of seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise BadSignature("the timestamp is too old, or in the future")


def _check(given: Sequence[str], expected: Sequence[str]) -> None:
    # every pair is compared, each in constant time: how long it takes says nothing
    matches = [hmac.compare_digest(g.encode("utf-8", "replace"), e.encode()) for g in given for e in expected]
    if not any(matches):
        raise BadSignature("the signature does not fit")
