"""One message, posted to a URL: signed, bounded in time and size, without following anybody elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import time

import httpcore
import msgspec

from .. import webhooks
from ..aio import AsyncMessage
from .addresses import Guard, GuardedBackend, Refused
from .payload import to_json

MOST_ANSWER = 64 * 1024  # bytes of an answer that are read; a connection with more is closed
LONGEST_REST = 24 * 3600.0  # seconds of a Retry-After that are believed
KEEP_ALIVE = 30.0  # seconds

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


class Poster:
    """Posts for all consumers of a process, over connections that are kept."""

    def __init__(self, guard: Guard, *, agent: str = "headgate") -> None:
        self._agent = agent
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,  # the consumers' own limits hold
            max_keepalive_connections=200,
            keepalive_expiry=KEEP_ALIVE,
            network_backend=GuardedBackend(guard),
        )

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
            return Answer(None, f"the connection failed: {type(error).__name__}")
        except (httpcore.ProtocolError, httpcore.UnsupportedProtocol, UnicodeError, ValueError) as error:
            return Answer(None, f"not an answer of HTTP: {type(error).__name__}")

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        async with self._pool.stream("POST", url, headers=list(headers.items()), content=body) as response:
            # Read to its end if it is short, so that the connection can be used again. What it says is not looked at.
            size = 0
            async for part in response.aiter_stream():
                size += len(part)
                if size > MOST_ANSWER:
                    break
            after = next((v for n, v in response.headers if n.lower() == b"retry-after"), None)
        status = response.status
        error = None if 200 <= status < 300 else f"HTTP {status}"
        return Answer(status, error, retry_after(after) if status in (429, 503) else None)

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.aclose()


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
