"""Bearer tokens: who calls, and what they may do.

A token is `<id>.<secret>`. The id finds the row, the secret's sha256 is compared in constant time; the secret itself is
shown once, when the token is made, and never stored or logged.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any

from ...aio import AsyncHeadgate
from ...database import statements
from ...database.columns import Array
from ...database.encoding import interval
from ...errors import Error
from ...tokens import digest, new_token
from ..http.errors import Problem
from ..http.routing import Scope

REMEMBERED = 1.0  # seconds: so long a revoked token may still work
LOOK_EVERY = 0.005  # seconds between looks at tokens in the database
_TOKEN = re.compile(r"(hg_[0-9a-f]{16})\.([A-Za-z0-9_-]{20,200})")


@dataclass(frozen=True)
class Caller:
    """Who makes a request."""

    id: str
    name: str
    scopes: frozenset[str]
    pattern: re.Pattern[str] | None = None  # of the streams it may use; None: all
    rate_limit: int | None = None

    def check(self, scope: Scope, stream: str | None, everywhere: bool) -> None:
        """403 unless this caller may do it. Said alike whether the stream exists or not."""
        if scope != "any" and scope not in self.scopes and "admin" not in self.scopes:
            raise Problem(
                403, "scope_missing", f'this needs a token with the scope "{scope}"',
                "ask for one: POST /api/tokens makes it",
            )  # fmt: skip
        if (everywhere and self.pattern is not None) or (stream is not None and not self.may_use(stream)):
            raise Problem(403, "stream_not_allowed", "this token is for other streams", "use a token for this stream")

    def may_use(self, stream: str) -> bool:
        """Whether the token is for this stream."""
        return self.pattern is None or self.pattern.fullmatch(stream) is not None


Found = tuple[bytes, Caller | None]  # the hash of the secret, and whose it is

ANYBODY = Caller("-", "nobody in particular", frozenset({"admin"}))  # of a server without authentication


def refuse_pages(headers: Mapping[bytes, bytes], host: str) -> None:
    """403 for what a page of somebody else's asks of a server without tokens, through the browser of who runs it.

    Such a page names its own host (also when its name was made to lead here), or the browser says whose it is.
    """
    asked = headers.get(b"host", b"").decode("latin-1").lower()
    name = asked.partition("]")[0][1:] if asked.startswith("[") else asked.rpartition(":")[0] or asked
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    is_other = origin and origin.partition("://")[2] != asked
    if not _is_here(name, host) or is_other or headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        raise Problem(
            403, "foreign_page", "without tokens this server answers only requests for its own address",
            "ask for 127.0.0.1 or localhost, not from another site's page; or start it with tokens",
        )  # fmt: skip


def _is_here(name: str, host: str) -> bool:
    """Whether a Host cannot be anybody else's name: an address, this machine's own name for itself, or what was set."""
    if name in ("", "localhost", host.lower()) or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Tokens:
    """The tokens of a database, the last ones remembered for a moment."""

    MOST = 10_000

    def __init__(self, hg: AsyncHeadgate, clock: Callable[[], float] = monotonic) -> None:
        self._hg = hg
        self._clock = clock
        self._known: dict[str, tuple[float, bytes, Caller | None]] = {}
        self._shown: dict[bytes, tuple[float, Caller]] = {}  # by the hash of a header that was found to be valid
        self._asked: dict[str, asyncio.Future[Found]] = {}  # ids to look up
        self._looker: asyncio.Task[None] | None = None

    async def caller(self, authorization: bytes | None, patience: float | None = None) -> Caller:
        """Who sent this Authorization header, or 401.

        With `patience`, a token that was valid when the database last answered is taken when it does not answer within
        so many seconds.
        """
        if not authorization:
            raise _unauthorized("a token is needed")
        shown = sha256(authorization).digest()
        lately = self._shown.get(shown)
        if lately is not None and lately[0] >= self._clock():
            return lately[1]
        try:
            async with asyncio.timeout(patience):
                caller = await self._check(authorization)
        except Problem:
            self._shown.pop(shown, None)
            raise
        except (Error, TimeoutError):
            if lately is None or patience is None:
                raise
            return lately[1]
        if len(self._shown) >= self.MOST:
            self._shown.clear()
        self._shown[shown] = (self._known.get(caller.id, (0.0,))[0], caller)
        return caller

    async def _check(self, authorization: bytes) -> Caller:
        kind, _, given = authorization.decode("latin-1").partition(" ")
        found = _TOKEN.fullmatch(given.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise _unauthorized("this is not a token")
        id, secret = found.groups()
        until, stored, caller = self._known.get(id, (0.0, b"", None))
        if until < self._clock():
            stored, caller = await self._look(id)
        # a token that does not exist takes the same way
        if not hmac.compare_digest(stored or bytes(32), digest(secret)) or caller is None:
            raise _unauthorized("this token is not valid")
        return caller

    async def _look(self, id: str) -> Found:
        """Asks the database, together with whoever else asks at this moment.

        One statement every few milliseconds, however many tokens are tried: those that do not exist cost nobody else.
        """
        if (answer := self._asked.get(id)) is None:
            answer = self._asked[id] = asyncio.get_running_loop().create_future()
            if self._looker is None:
                self._looker = asyncio.create_task(self._look_all())
        return await asyncio.shield(answer)

    async def _look_all(self) -> None:
        """Looks up what is asked for, until nothing is."""
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                rows = await self._hg.run(statements.CHECK_TOKENS, (Array(asked),))
            except Exception as error:
                for answer in asked.values():
                    answer.set_exception(error)
                    answer.exception()  # who asked may have gone
            else:
                self._answer(asked, rows)
            await asyncio.sleep(LOOK_EVERY)
        self._looker = None

    def _answer(self, asked: dict[str, asyncio.Future[Found]], rows: Sequence[Sequence[Any]]) -> None:
        found: dict[str, Found] = {}
        for id, name, hash, scopes, pattern, rate in rows:
            compiled = re.compile(pattern) if pattern else None
            found[id] = bytes(hash), Caller(id, name, frozenset(scopes), compiled, rate)
        if len(self._known) + len(asked) > self.MOST:
            self._known.clear()
        for id, answer in asked.items():
            stored, caller = found.get(id, (b"", None))
            self._known[id] = (self._clock() + REMEMBERED, stored, caller)
            answer.set_result((stored, caller))

    def forget(self, id: str) -> None:
        """Looks a token up anew at its next use."""
        self._known.pop(id, None)
        self._shown.clear()

    async def create(
        self,
        name: str,
        scopes: list[str],
        streams: list[str] | None = None,
        rate_limit: int | None = None,
        lifetime: float | None = None,
    ) -> tuple[str, str]:
        """Makes a token; returns its id and the token itself, which nobody can ask for again."""
        made = new_token()
        patterns = None if streams is None else Array(streams)
        params = (made.id, name, made.digest, Array(scopes), patterns, rate_limit, interval(lifetime))
        await self._hg.run(statements.CREATE_TOKEN, params)
        return made.id, made.text

    async def first_admin(self, file: Path) -> bool:
        """Has a working admin token in the file; True when it had to be made. Only the file's owner can read it."""
        try:
            caller = await self.caller(b"Bearer " + _read(file))
            if "admin" in caller.scopes:
                return False
        except (OSError, Problem):
            pass
        _, token = await self.create("first admin", ["admin"])
        _write(file, token + "\n")
        return True


def _read(file: Path) -> bytes:
    return file.read_bytes().strip()


def _write(file: Path, text: str) -> None:
    """Replaces the file; at no moment can anybody else read it."""
    file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    draft.replace(file)


def _unauthorized(message: str) -> Problem:
    return Problem(401, "unauthorized", message, "send it as Authorization: Bearer <token>")
