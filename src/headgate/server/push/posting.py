"""One message, posted to a URL: signed, bounded in time and size, without following anybody elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import time

import httpcore
import msgspec

from ... import webhooks
from ...aio import AsyncMessage
from ..http.payload import to_json
from .addresses import Guard, GuardedBackend, Refused

MOST_ANSWER = 64 * 1024  # bytes of an answer that are read; a connection with more is closed
LONGEST_REST = 24 * 3600.0  # seconds of a Retry-After that are believed
KEEP_ALIVE = 30.0  # seconds
MOST_IDLE = 200  # connections to one host

Place = tuple[bytes, bytes, int]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Target:
    """Where and how one consumer pushes. What is secret is not in its repr."""

    stream: str
    consumer: str
    version: int
    url: str
    secrets: Sequence[str] = field(repr=False)
    concurrency: int
    timeout: float
    headers: Mapping[str, str] | None = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What became of a post: the status, or why there is none."""

    status: int | None
    error: str | None = None
    retry_after: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the endpoint has taken it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """Whether the endpoint wants nothing any more."""
        return self.status == 410

    @property
    def is_trouble(self) -> bool:
        """Whether it is the endpoint that has trouble, not this message."""
        return self.status is None or self.status >= 500 or self.status == 429


def message_id(stream: str, consumer: str, message: AsyncMessage) -> str:
    """The same for every attempt at a message, for this consumer; the receiver's key to tell repetitions by."""
    moment = message.created_at.astimezone(UTC).isoformat()
    digest = hashlib.sha256(f"{stream}\n{consumer}\n{message.seq}\n{moment}".encode()).hexdigest()
    return "msg_" + digest[:32]  # without a dot, which Standard Webhooks separates with


def body_of(stream: str, consumer: str, m: AsyncMessage) -> bytes:
    """What is posted."""
    try:
        return _encode(_fields(stream, consumer, m, m.headers))
    except (ValueError, RecursionError):  # who sends with SQL can write anything into headers
        return _encode(_fields(stream, consumer, m, None))


def _fields(stream: str, consumer: str, m: AsyncMessage, headers: object) -> dict[str, object]:
    return {
        "stream": stream, "consumer": consumer, "seq": m.seq, "key": m.key, "channel": m.channel, "headers": headers,
        "created_at": m.created_at, "attempt": m.attempt, "data": to_json(m.text, m.headers),
    }  # fmt: skip


def _reason(error: BaseException) -> str:
    """What the system says of a connection that failed, which others have wrapped in errors of their own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno:
            return os.strerror(inner.errno).lower()
        inner = inner.__cause__ or inner.__context__
    return type(error).__name__


class Poster:
    """Posts for all consumers of a process, over connections that are kept."""

    def __init__(self, guard: Guard, *, agent: str = "headgate") -> None:
        self._agent = agent
        self._ssl = ssl.create_default_context()
        self._backend = GuardedBackend(guard)
        # By scheme, host and port, those used last at the end. (httpcore's own pool looks at every connection for
        # every request: with 32 of them that is most of the time spent.)
        self._idle: dict[Place, list[httpcore.AsyncHTTPConnection]] = {}

    async def post(self, target: Target, message: AsyncMessage) -> Answer:
        """Posts a message; never raises for what the endpoint or the network does."""
        body = body_of(target.stream, target.consumer, message)
        id = message_id(target.stream, target.consumer, message)
        headers = {
            **(target.headers or {}),
            **webhooks.sign(target.secrets, id, int(time()), body),
            "content-type": "application/json",
        }
        if not any(name.lower() == "user-agent" for name in headers):
            headers["user-agent"] = self._agent
        try:
            async with asyncio.timeout(target.timeout):
                return await self._post(target.url, headers, body)
        except (TimeoutError, httpcore.TimeoutException):
            return Answer(None, f"no answer within {target.timeout:g} s")
        except Refused as error:
            return Answer(None, f"refused: {error}")
        except socket.gaierror:
            return Answer(None, "the host's name cannot be resolved")
        except ssl.SSLError as error:
            return Answer(None, f"TLS: {error.reason or 'failed'}")
        except (httpcore.NetworkError, OSError) as error:
            return Answer(None, f"the connection failed: {_reason(error)}")
        except (httpcore.ProtocolError, httpcore.UnsupportedProtocol, UnicodeError, ValueError) as error:
            return Answer(None, f"not an answer of HTTP: {type(error).__name__}")

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        parsed = httpcore.URL(url)
        origin = parsed.origin
        place = (origin.scheme, origin.host, origin.port)
        connection = await self._connection(place, origin)
        try:
            async with connection.stream("POST", parsed, headers=list(headers.items()), content=body) as response:
                # Read to its end if it is short, so that the connection can be used again. What it says is not looked
                # at.
                size = 0
                async for part in response.aiter_stream():
                    size += len(part)
                    if size > MOST_ANSWER:
                        break
                after = next((v for n, v in response.headers if n.lower() == b"retry-after"), None)
        except BaseException:
            await connection.aclose()
            raise
        idle = self._idle.setdefault(place, [])
        if connection.is_idle() and len(idle) < MOST_IDLE:
            idle.append(connection)
        else:
            await connection.aclose()
        status = response.status
        error = None if 200 <= status < 300 else f"HTTP {status}"
        return Answer(status, error, retry_after(after) if status in (429, 503) else None)

    async def _connection(self, place: Place, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """One that is kept, if it is still open, or a new one."""
        idle = self._idle.get(place)
        while idle:
            kept = idle.pop()
            if not kept.has_expired():
                return kept
            await kept.aclose()
        return httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._ssl, keepalive_expiry=KEEP_ALIVE, network_backend=self._backend
        )

    async def tidy(self) -> None:
        """Closes connections that were not used for long."""
        for place, idle in list(self._idle.items()):
            for kept in [c for c in idle if c.has_expired()]:
                idle.remove(kept)
                await kept.aclose()
            if not idle and self._idle.get(place) is idle:
                del self._idle[place]

    async def close(self) -> None:
        """Closes the connections."""
        for idle in self._idle.values():
            for kept in idle:
                await kept.aclose()
        self._idle.clear()


def retry_after(value: bytes | None, now: datetime | None = None) -> float | None:
    """Seconds until a Retry-After, which is a number of seconds or a date; None when it is neither."""
    text = (value or b"").decode("latin-1").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), LONGEST_REST)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return min(max((until - (now or datetime.now(UTC))).total_seconds(), 0.0), LONGEST_REST)
