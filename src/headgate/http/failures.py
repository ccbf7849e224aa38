"""The errors of the SDK that the server's answers stand for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from .. import errors
from ..errors import (
    ConnectionFailed,
    Error,
    InvalidArgument,
    MessageTooLarge,
    NotAllowed,
    ServerBusy,
    code_of,
)
from ..hints import translate

# Whether it was done is not known, or it cannot be done now: it may be repeated by whom it does no harm.
TRANSIENT_CODES = {"database_away", "database_unavailable", "database_busy", "timeout", "stopping", "gateway"}

_BY_CODE: dict[str, type[Error]] = {
    **{code_of(cls): cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Error)},
    "unauthorized": NotAllowed,
    "scope_missing": NotAllowed,
    "stream_not_allowed": NotAllowed,
    "foreign_page": NotAllowed,
    "server_not_allowed": NotAllowed,
    "database_away": ConnectionFailed,
    "database_busy": ConnectionFailed,
    "timeout": ConnectionFailed,
    "stopping": ConnectionFailed,
    "gateway": ConnectionFailed,
    "body_too_large": MessageTooLarge,
}
# What the server advises is HTTP; here the advice is for who calls the SDK.
_HINTS = {
    "unauthorized": "pass token=, or set HEADGATE_TOKEN; `headgate token add` makes one",
    "scope_missing": "use a token with this scope: `headgate token add` makes one",
    "invalid_body": "check the arguments of the call",
    "invalid_query": "check the arguments of the call",
    "body_too_large": "send fewer or smaller messages in one call",
    "database_away": "the server runs, and its database is away; the call can be repeated",
}


class Failure(msgspec.Struct, frozen=True):
    """What the server answered instead."""

    status: int
    code: str
    error: Error

    @property
    def is_refused(self) -> bool:
        """Whether nothing was done, because the server has too much to do."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS


def failure(status: int, body: bytes, location: str | None) -> Failure:
    """What an answer other than success stands for."""
    if 300 <= status < 400:
        error = Error(f"the server answers with a redirect to {location}", hint="use that URL, if it is the server's")
        return Failure(status, "redirect", error)
    try:
        found: dict[str, Any] = msgspec.json.decode(body)["error"]
        code, message, hint = str(found["code"]), str(found["message"]), found.get("hint")
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return _foreign(status)
    if code in ("not_found", "method_not_allowed"):
        error = Error("the server does not know this call", hint="it may be older than this client: upgrade it")
        return Failure(status, code, error)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Failure(status, code, ServerBusy(message, hint=hint))
    cls = _BY_CODE.get(code) or (InvalidArgument if status < 500 else Error)
    return Failure(status, code, cls(message, hint=_HINTS.get(code) or (translate(hint, "python") if hint else None)))


def _foreign(status: int) -> Failure:
    """An answer that is not Headgate's: of a proxy on the way, or of another server."""
    said = f"{status} {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else str(status)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Failure(status, "busy", ServerBusy(f"what answers at this URL says {said}", hint="call less often"))
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        error: Error = ConnectionFailed(
            f"what answers at this URL says {said}", hint="is the server behind it running? the call can be repeated"
        )
        return Failure(status, "gateway", error)
    return Failure(
        status, "foreign", Error(f"what answers at this URL is not Headgate: {said}", hint="check the server's URL")
    )
