"""Incoming webhooks: which source, whether the signature fits, and the message that it becomes."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

import msgspec

from ... import tracing, webhooks
from ...aio import AsyncHeadgate
from ...database import statements
from ...database.columns import Columns
from ...database.encoding import CONTENT_TYPE, ENCODING
from ...errors import InvalidText
from ..http.errors import Problem
from ..http.payload import to_text

REMEMBERED = 1.0  # seconds: so long an old secret may still work at other servers
MOST = 10_000  # sources remembered, also those that there are not
LONGEST_ID = 200  # characters; a longer delivery id is hashed
LONGEST_TEXT = 2000  # characters of a key, a channel or a header that is kept

# Where the delivery's id is, and what else is worth keeping, unless the source says otherwise.
_IDS = {"standard": "header:webhook-id", "github": "header:x-github-delivery", "stripe": "id"}
_HEADERS: dict[str, list[str]] = {"github": ["x-github-event"]}


@dataclass(frozen=True)
class Source:
    """A webhook source. Its secrets are not in its repr."""

    name: str
    stream: str
    scheme: str
    secrets: list[str] = field(repr=False)
    settings: dict[str, Any]

    @property
    def rate_limit(self) -> int | None:
        """Messages a second."""
        return self.settings.get("rate_limit")


class Sources:
    """The sources of a database, the last ones remembered for a moment."""

    def __init__(self, hg: AsyncHeadgate, clock: Callable[[], float] = monotonic) -> None:
        self._hg = hg
        self._clock = clock
        self._known: dict[str, tuple[float, Source | None]] = {}

    async def find(self, name: str) -> Source:
        """A source, or 404."""
        until, source = self._known.get(name, (0.0, None))
        if until < self._clock():
            rows = await self._hg.run(statements.SOURCE_SETTINGS, (name,)) if len(name) <= LONGEST_ID else []
            source = Source(name, *rows[0]) if rows else None
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[name] = (self._clock() + REMEMBERED, source)
        if source is None:
            raise Problem(404, "source_not_found", "there is no such source", "POST /api/sources makes one")
        return source

    def forget(self, name: str) -> None:
        """Looks a source up anew at its next use."""
        self._known.pop(name, None)


def sender(address: str | None) -> str:
    """Whom a rate limit is for: an address, or of IPv6, where everybody has many, the network."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "webhook -"
    if found.version == 6:
        return f"webhook {ipaddress.ip_network((int(found), 64), strict=False)}"
    return f"webhook {found}"


def take(
    source: Source,
    headers: Mapping[str, str],
    body: bytes,
    now: float | None = None,
    trace: tracing.Carried | None = None,
) -> Columns:
    """The message that a webhook becomes. 401 unless its signature fits; 4xx for a body that the source does not take.

    Nothing of the body is looked at before the signature was checked.
    """
    settings = source.settings
    try:
        webhooks.verify(
            source.scheme,
            source.secrets,
            headers,
            body,
            now=time() if now is None else now,
            tolerance=settings.get("tolerance", webhooks.TOLERANCE),
            signature=settings.get("signature"),
        )
    except webhooks.BadSignature as error:
        raise Problem(401, "bad_signature", str(error), "sign it as the source's scheme says") from None
    kept: dict[str, Any] = {"source": source.name}
    for name in settings.get("headers") or _HEADERS.get(source.scheme, []):
        if (value := headers.get(name.lower())) is not None:
            kept[name.lower()] = value[:LONGEST_TEXT]
    value, text, kept = _content(source, headers, body, kept)
    delivery = _pick(settings.get("id") or _IDS.get(source.scheme), headers, value)
    id = None if delivery is None else f"{source.name}:{_short(delivery)}"
    key, channel = (_checked(_pick(settings.get(name), headers, value), name) for name in ("key", "channel"))
    columns = Columns()
    columns.add(text, key, kept, channel, None, id, trace)
    return columns


def _content(
    source: Source, headers: Mapping[str, str], body: bytes, kept: dict[str, Any]
) -> tuple[Any, str, dict[str, Any]]:
    """The value, if the body is JSON, and the text and headers that carry it."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        if source.settings.get("body") != "any":
            raise Problem(
                422, "not_json", "the body is not JSON", 'send JSON, or let the source take "body": "any"'
            ) from None
    else:
        kept.pop(CONTENT_TYPE, None)  # that of the request would be taken for the message's
        text, with_kind = to_text(msgspec.Raw(body), kept)
        return value, text, with_kind or kept
    try:
        plain = body.decode("utf-8")
        if "\x00" not in plain:
            kind = headers.get("content-type", "")
            kept[CONTENT_TYPE] = kind[:LONGEST_TEXT] if kind.startswith("text/") else "text/plain"
            return None, plain, kept
    except UnicodeDecodeError:
        pass
    kept.pop(CONTENT_TYPE, None)
    return None, base64.b64encode(body).decode("ascii"), {**kept, ENCODING: "base64"}


def _pick(where: str | None, headers: Mapping[str, str], value: Any) -> str | None:
    """What stands in a header (`header:X-Name`) or in the JSON body (`customer.id`, `/customer/id`), as text."""
    if where is None:
        return None
    if where.startswith("header:"):
        return headers.get(where.removeprefix("header:").lower()) or None
    if where.startswith("/"):
        steps = [s.replace("~1", "/").replace("~0", "~") for s in where[1:].split("/")]
    else:
        steps = where.removeprefix("$.").split(".")
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 7:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value) or None


def _short(delivery: str) -> str:
    """A delivery id that fits into an index, whatever the sender makes up."""
    if len(delivery) <= LONGEST_ID and delivery.isprintable():
        return delivery
    return "sha256-" + hashlib.sha256(delivery.encode("utf-8", "surrogatepass")).hexdigest()


def _checked(text: str | None, what: str) -> str | None:
    if text is not None and len(text) > LONGEST_TEXT:
        raise Problem(422, "invalid_body", f"the {what} is longer than {LONGEST_TEXT} characters", "send a shorter one")
    if text is not None and "\x00" in text:
        raise InvalidText(f"the {what} contains a NUL character, which PostgreSQL cannot store", hint="remove the NUL")
    return text
