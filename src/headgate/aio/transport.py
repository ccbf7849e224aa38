"""The way to the database over HTTP: a server's API instead of SQL.

`run` takes the statements of the SDK, and answers their rows: everything above it is the same as over a connection to
the database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Sequence
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from .. import tracing
from ..database import statements
from ..database.drivers import Row
from ..errors import ConnectionFailed, Error, InvalidArgument, InvalidText, NotOverHttp
from ..http import calls, failures, messages, responses
from ..http.messages import MOST_IDS, SETTLING
from ..http.request import Request

if TYPE_CHECKING:
    import httpcore

log = logging.getLogger("headgate.http")

TOKEN = "HEADGATE_TOKEN"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds before a call is repeated, where the server does not say it
LONGEST_CONNECT = 10.0  # seconds
ANSWERING = 0.5  # seconds that a cancelled receive waits for an answer that is on its way
KEPT = 30.0  # seconds that an idle connection is kept: less than servers and proxies keep it

_encode = msgspec.json.Encoder().encode


class AsyncTransport:
    """Calls of one server, over connections that are kept.

    `patience` is how long a call is repeated that did not reach the server, or that it refused for now; one of which it
    is not known whether it was done, only where that does no harm.
    """

    def __init__(self, url: str, token: str | None, *, max_connections: int, timeout: float) -> None:
        self._base = _checked_url(url)
        self._token = _checked_token(token or os.environ.get(TOKEN))
        self._max_connections = max_connections
        self._timeout = timeout
        self.patience = timeout
        self._pool: httpcore.AsyncConnectionPool | None = None
        # async-only: begin
        self._under_way: dict[asyncio.Task[httpcore.Response], float] = {}  # since when an answer could have come
        # async-only: end
        self._process = 0  # that has opened the pool: a fork must not share its connections

    def __str__(self) -> str:
        port = "" if self._base.port is None else f":{self._base.port}"
        return f"{self._base.scheme}://{self._base.hostname}{port}"

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._pool is not None

    async def open(self) -> None:
        """Checks that there is a server, and that its database answers."""
        self._pool = self._new_pool()
        try:
            await self.call(Request("GET", "/readyz", is_safe=True), is_first=True)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connections."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            await pool.aclose()

    # async-only: begin
    def cut(self) -> None:
        """Ends every call that waits for an answer: it fails at once, and is not repeated."""
        self.patience = 0.0
        for task in list(self._under_way):
            task.cancel()

    def waits(self) -> float:
        """Seconds that the oldest call has been waiting for its answer, apart from what the server was told to wait."""
        return monotonic() - min(self._under_way.values()) if self._under_way else 0.0

    async def _unless_cut(self, request: Request) -> httpcore.Response:
        task = asyncio.ensure_future(self._exchange(request))
        self._under_way[task] = monotonic() + request.wait
        try:
            await asyncio.wait([task])
        finally:
            self._under_way.pop(task, None)
            task.cancel()  # if it is we who are cancelled
        if task.cancelled():
            raise _Failed(ConnectionFailed("the call was ended before it was answered", hint="repeat it"), passes=True)
        return task.result()

    # async-only: end

    async def run(self, query: str, params: Sequence[Any], conn: Any = None) -> list[Row]:
        """The rows that a statement would have."""
        if conn is not None:
            raise NotOverHttp(
                "conn= joins a transaction of the database, which a client over HTTP does not reach",
                hint="connect to the database itself; or leave conn= out, and call after your commit",
            )
        if query in SETTLING and len(params[2]) > MOST_IDS:
            return await self._in_parts(query, params)
        if query == statements.CONSUMERS and params[0] is None:
            streams = await self.run(statements.STREAMS, (None, None))
            return [c for s in streams for c in await self.run(query, (s[0], s[0], None, None))]
        if query == statements.WORKERS and params[2] is None:
            consumers = await self.run(statements.CONSUMERS, (params[0], params[0], None, None))
            return [w for c in consumers for w in await self.run(query, (c[0], c[0], c[1], c[1]))]
        try:
            made = calls.request(query, params)
            return await self.call(made) if isinstance(made, Request) else made
        except UnicodeEncodeError as error:
            raise InvalidText(
                f"this text cannot be sent: {error}", hint="remove halves of surrogate pairs, or send the data as bytes"
            ) from error

    async def receive(self, stream: str, params: Sequence[Any], wait: float) -> list[Row]:
        """What a receive hands out; the server waits up to `wait` seconds for the first message, or less."""
        name, batch_size, worker, acks, *more = params
        while acks is not None and len(acks) > MOST_IDS:
            await self.run(statements.ACK, (stream, name, acks[:MOST_IDS]))
            acks = acks[MOST_IDS:]
        request = messages.receive(stream, (name, batch_size, worker, acks, *more), wait)
        # async-only: begin
        asking = asyncio.ensure_future(self.call(request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError as error:  # the answer may be on its way: what it brings is handed back
            await asyncio.wait([asking], timeout=ANSWERING)
            if not asking.done():
                asking.cancel()  # the server sees that nobody waits any more
            elif not asking.cancelled() and asking.exception() is None:
                error._headgate_rows = asking.result()  # type: ignore[attr-defined]
            raise
        # async-only: end
        # sync-only: begin
        # return self.call(request)
        # sync-only: end

    async def _in_parts(self, query: str, params: Sequence[Any]) -> list[Row]:
        stream, consumer, ids, *more = params
        settled = [0, 0]
        for start in range(0, len(ids), MOST_IDS):
            [part] = await self.run(query, (stream, consumer, ids[start : start + MOST_IDS], *more))
            settled = [a + b for a, b in zip(settled, part, strict=True)]
        return [tuple(settled)]

    async def call(self, request: Request, *, is_first: bool = False) -> list[Row]:
        """The rows of a request's answer. What passes by itself is tried again, if that does no harm.

        At the first call of all there may be no server at this URL: that is said at once.
        """
        began = monotonic()
        pause = SHORTEST_PAUSE
        while True:
            try:
                return await self._attempt(request)
            except _Failed as failed:
                if is_first and failed.code in ("", "not_found", "foreign"):
                    raise _nobody(self._base, failed) from failed.__cause__
                if request.wait and failed.code == "too_many_waiting":  # as if it had waited for nothing
                    await asyncio.sleep(min(request.wait, failed.retry_after or LONGEST_PAUSE))
                    return []
                wait = pause if failed.retry_after is None else max(failed.retry_after, SHORTEST_PAUSE)
                pause = min(pause * 2, LONGEST_PAUSE)
                if not (failed.is_undone or (request.is_safe and failed.passes)) or (
                    monotonic() + wait > began + self.patience
                ):
                    raise _explained(failed, request) from failed.__cause__
                log.info("%s; again in %.1f s", failed.error.message, wait)
                await asyncio.sleep(wait)

    async def _attempt(self, request: Request) -> list[Row]:
        import httpcore

        try:
            # async-only: begin
            response = await self._unless_cut(request)
            # async-only: end
            # sync-only: begin
            # response = self._exchange(request)
            # sync-only: end
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout, httpcore.ProxyError) as error:
            raise _Failed(_unreachable(self._base, error), is_undone=True) from error
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise _Failed(_unreachable(self._base, error), passes=True) from error
        head = {name.lower(): value for name, value in response.headers}
        if response.status < 300:
            return _rows(request, response.content)
        found = failures.failure(response.status, response.content, head.get(b"location", b"").decode("latin-1"))
        if request.missing is not None and request.missing[0] == found.code:
            return list(request.missing[1])
        raise _Failed(
            found.error,
            code=found.code,
            is_undone=found.is_refused,
            passes=found.code in failures.TRANSIENT_CODES,
            retry_after=_seconds(head.get(b"retry-after")),
        )

    async def _exchange(self, request: Request) -> httpcore.Response:
        import httpcore

        if self._pool is None:
            # (closed meanwhile, perhaps, by a worker that begins anew: its calls may be repeated)
            raise ConnectionFailed("this Headgate is not open", hint="use headgate.connect(), or call open() first")
        if self._process != os.getpid():
            self._pool = self._new_pool()  # those of the parent are left alone: it still uses them
        headers: dict[bytes | str, bytes | str] = {"Accept": "application/json", "User-Agent": "headgate-python"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        headers.update(tracing.current())
        content = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            content = _encode(request.body)
        base = self._base
        target = base.path.rstrip("/") + request.path
        if request.query:
            target += "?" + urlencode(
                {name: _word(value) for name, value in request.query.items() if value is not None}
            )
        limits = {"connect": min(self._timeout, LONGEST_CONNECT), "read": self._timeout + request.wait}
        limits |= {"write": self._timeout, "pool": self._timeout}
        port = base.port or (443 if base.scheme == "https" else 80)
        url = httpcore.URL(scheme=base.scheme, host=base.hostname or "", port=port, target=target)
        return await self._pool.request(
            request.method, url, headers=headers, content=content, extensions={"timeout": limits}
        )

    def _new_pool(self) -> httpcore.AsyncConnectionPool:
        try:
            import httpcore
        except ImportError as missing:
            raise Error(f"a client over HTTP needs {missing.name}", hint="pip install 'headgate[http]'") from missing
        self._process = os.getpid()
        return httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context() if self._base.scheme == "https" else None,
            proxy=_proxy(self._base),
            max_connections=self._max_connections,
            keepalive_expiry=KEPT,
        )


class _Failed(Exception):
    """An attempt that failed."""

    def __init__(
        self,
        error: Error,
        *,
        code: str = "",
        is_undone: bool = False,
        passes: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.code = code
        self.is_undone = is_undone  # for sure, and it may work later
        self.passes = passes  # it may work later
        self.retry_after = retry_after


def _proxy(base: SplitResult) -> httpcore.Proxy | None:
    """The proxy that the environment names (HTTPS_PROXY, NO_PROXY and so on), as for other programs."""
    import httpcore

    host = base.hostname or ""
    url = getproxies().get(base.scheme)
    if not url or host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    parts = urlsplit(url)
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore.Proxy(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", auth=auth)


def _nobody(base: SplitResult, failed: _Failed) -> Error:
    """What is said when no server of ours answers at all."""
    if not failed.code:
        return failed.error
    return Error(f"there is no Headgate server at {base.geturl()}", hint="check its URL")


def _explained(failed: _Failed, request: Request) -> Error:
    """The error to raise. Of what may have been done it says so."""
    error = failed.error
    if failed.passes and not request.is_safe and isinstance(error, ConnectionFailed):
        error.hint = (
            "whether the messages were sent is not known: with an id for each, sending them again does no harm"
            if request.path.endswith("/messages")
            else "whether it was done is not known; look before you repeat it"
        )
    return error


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[responses.Answer[Any]]:
    return msgspec.json.Decoder(responses.Answer[kind])


def _rows(request: Request, content: bytes) -> list[Row]:
    try:
        answer = _decoder(request.answer).decode(content)
        return request.rows(answer.data, answer.next)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise Error(
            "the server's answer cannot be read", hint="is it a Headgate server, and of this client's version?"
        ) from error


def _unreachable(base: SplitResult, error: Exception) -> ConnectionFailed:
    said = str(error) or type(error).__name__
    return ConnectionFailed(
        f"the connection to the server at {base.scheme}://{base.netloc} failed: {said}",
        hint="check that it runs and that the URL is right; the call can be repeated",
    )


def _seconds(header: bytes | None) -> float | None:
    """Of a Retry-After. (One with a date is not Headgate's.)"""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
    if not is_whole or parts.query or parts.fragment:
        raise InvalidArgument("the server's URL cannot be read", hint="write http://host:7376 or https://host")
    if parts.username is not None or parts.password is not None:  # it is not repeated
        raise InvalidArgument("the server's URL holds a password", hint="pass the token as token=")
    return parts


def _checked_token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not token.isascii() or not token.isprintable() or " " in token:  # it is not repeated
        raise InvalidArgument("this is not a token", hint="pass what `headgate token add` printed")
    return token or None
