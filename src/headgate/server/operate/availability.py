"""Whether the database is there, and getting it back. While it is away requests are refused at once.

The pool of connections would try again by itself, later and later, and let every caller wait for it. So when a call
has failed, this looks with a connection of its own, and while there is none, nobody waits for one. A private PostgreSQL
is looked at all the time, and started again when it has ended: any process that uses it may do that, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from time import monotonic

from ...aio import AsyncHeadgate
from ...errors import Conflict, ConnectionFailed, EmbeddedServerError, Error
from ...postgres.embedded import EmbeddedServer
from ...service import Pace, TaskService, is_set_within, spread

log = logging.getLogger("headgate.server")

LOOK_EVERY = 0.25  # seconds between looks at a private PostgreSQL
PATIENCE = 5  # seconds for a connection
CONNECT = Pace(0.1, 1.0)  # seconds between tries to connect
RESTART = Pace(0.1, 30.0)  # seconds between tries to start a private PostgreSQL
SAY_AGAIN = 60.0  # seconds until the same trouble is said again

# The server is there and does not want us: no time will change that. (libpq has no code for these; in another language
# than English they are not known, and waited out.)
REFUSED = re.compile(
    r"FATAL: .*(authentication failed|does not exist|no pg_hba\.conf entry|not permitted to log in)"
    r"|no password supplied|invalid connection option|server does not support SSL"
    r"|invalid port number|Servname not supported"
)


def is_passing(error: Error) -> bool:
    """Whether the database may be there later, without anybody changing how it is called."""
    if isinstance(error, Conflict):
        return True
    return isinstance(error, ConnectionFailed) and not REFUSED.search(str(error.__cause__ or error))


class Availability(TaskService):
    """Whether the database is there. Its task looks after it, once it is open."""

    task_name = "headgate-database"

    def __init__(self, hg: AsyncHeadgate) -> None:
        super().__init__()
        self._hg = hg
        self._look = asyncio.Event()
        self._said: tuple[str, float] = ("", 0.0)
        self.is_away = False
        self.error: Error = ConnectionFailed("the database cannot be reached")

    @property
    def _server(self) -> EmbeddedServer | None:
        return self._hg._server

    def suspect(self) -> None:
        """A call failed as it does when the database is away."""
        self._look.set()

    async def open(self, *, migrate: bool) -> bool:
        """Opens the database, or says that it is away. Raises what will not pass."""
        try:
            await self._hg.open(migrate=migrate)
        except Error as error:
            if not is_passing(error):
                raise
            self.is_away = True
            self._say("the database is away, and waited for", error)
            return False
        return True

    async def open_later(self, *, migrate: bool) -> None:
        """Opens it as soon as it is there."""
        began, pause = monotonic(), 0.0
        while not await self.open(migrate=migrate):
            pause = CONNECT.after(pause)
            await asyncio.sleep(spread(pause))
        self._back(began)

    async def _run(self) -> None:
        while True:
            is_suspected = await is_set_within(self._look, LOOK_EVERY)
            self._look.clear()
            if not self._hg.is_open or not (is_suspected or self._has_ended()):
                continue
            try:
                await self._look_at_it()
            except Exception:  # others rely on this: only stop() ends it
                log.exception("looking after the database failed")

    def _has_ended(self) -> bool:
        return self._server is not None and self._server.pid is None

    async def _look_at_it(self) -> None:
        began = monotonic()
        try:
            if not self._has_ended():
                await self._hg._probe(PATIENCE)
                return
            self._say("the private PostgreSQL has ended, and is started again")
        except Error as error:
            self._say("the database is away", error)
        self.is_away = True
        await self._hg._reconnect()  # who waits for a connection is answered
        pause, pace = 0.0, RESTART if self._server else CONNECT
        while not await self._try():
            pause = pace.after(pause)
            await asyncio.sleep(spread(pause))
        await self._hg._reconnect()
        self._back(began)

    async def _try(self) -> bool:
        try:
            if self._has_ended():
                assert self._server is not None
                await asyncio.to_thread(self._server.revive)
            await self._hg._probe(PATIENCE)
        except EmbeddedServerError as error:
            self._say("the private PostgreSQL cannot be started", error)
            return False
        except Error as error:
            self._say("the database is away", error)
            return False
        return True

    def _back(self, began: float) -> None:
        self.is_away, self._said = False, ("", 0.0)
        log.warning("the database is there again, after %.1f s", monotonic() - began)

    def _say(self, what: str, error: Error | None = None) -> None:
        """Logs it; the same again only after a minute."""
        text = what if error is None else f"{what}: {error.message}"
        said, at = self._said
        if said != text or monotonic() - at > SAY_AGAIN:
            self._said = (text, monotonic())
            log.error("%s", text, extra={"hint": error.hint} if error is not None and error.hint else None)
