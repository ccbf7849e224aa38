"""What a process has of its parent and its siblings.

From its parent come connections that were accepted, and the end: when the parent's stream of messages ends, because the
parent wants it or is no more, the process does. Siblings get datagrams, for what may not wait until they look
themselves; one that has no room for them finds out by looking.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...service import cancel_and_wait
from ..http.limits import Places, Rates
from ..operate.metrics import Figures
from . import messages
from .messages import (
    Altered,
    Ask,
    Count,
    Counted,
    Failed,
    Frames,
    Leaving,
    Listening,
    MayHaveWork,
    Published,
    Ready,
    Revoked,
    Sideways,
    SourceChanged,
    Sum,
    Upward,
)
from .shared import Shared

if TYPE_CHECKING:
    from ..server import Server

log = logging.getLogger("headgate.server")

AT_ONCE = 64  # connections or datagrams that are taken before others get a turn
QUIET = 0.002  # seconds: who has been told of a stream within them looks every millisecond by itself
MOST_TOLD = 10_000  # streams and consumers remembered
PATIENCE = 3.0  # seconds that the parent may take to gather what the others counted
COUNT_EVERY = 10.0  # seconds: what a killed process counted since is missing from the sums


class Member:
    """One process of several."""

    def __init__(
        self, slot: int, control: socket.socket, handover: socket.socket, mailbox: socket.socket,
        mailboxes: list[socket.socket], shared: Shared,
    ) -> None:  # fmt: skip
        self.slot = slot
        self._control = control
        self._handover = handover
        self._mailbox = mailbox  # what siblings write to
        self._mailboxes = mailboxes  # of all
        self._shared = shared
        handover.setblocking(False)
        mailbox.setblocking(False)
        self._told: dict[tuple[str, ...], float] = {}  # when siblings were last told of it
        self._to_tell: dict[tuple[str, str], int] = {}  # of consumers, what they are to be told soon
        self._sums: dict[int, asyncio.Future[list[Figures]]] = {}
        self._asked = 0
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Server | None = None
        self._count: Callable[[], Figures] | None = None
        self._take: Callable[[socket.socket], asyncio.Task[None]] | None = None

    # The parent

    async def connect(self, stop: asyncio.Event) -> None:
        """Begins to listen to the parent; `stop` is set when it has gone or wants this process to end."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control)
        self._run(self._hear(reader, stop))

    async def _hear(self, reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
        frames = Frames()
        with suppress(OSError):
            while data := await reader.read(65536):
                for found in frames.feed(data):
                    match messages.downward(found):
                        case Count():
                            self.count()
                        case Sum(number, figures):
                            if (waiter := self._sums.pop(number, None)) is not None and not waiter.done():
                                waiter.set_result(figures)
        self._take_connections()  # those that were handed over before
        stop.set()

    def tell(self, message: Upward) -> None:
        """Says something to the parent."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.frame(message))

    def listening(self) -> None:
        """Requests are answered from now on."""
        self.tell(Listening())

    def ready(self, database: str, token_file: Path | None) -> None:
        """And not only with 503."""
        self.tell(Ready(database, str(token_file) if token_file else None))

    def failed(self, message: str, hint: str | None) -> None:
        """It cannot start."""
        self.tell(Failed(message, hint))

    def leave(self) -> None:
        """Somebody else than the parent wants this process to end: the parent says when."""
        self.tell(Leaving())

    def count(self) -> None:
        """Says what this process has counted."""
        if self._count is not None:
            self.tell(Counted(self._count()))

    async def figures(self) -> list[Figures]:
        """What all the others have counted."""
        self._asked += 1
        number = self._asked
        waiter: asyncio.Future[list[Figures]] = asyncio.get_running_loop().create_future()
        self._sums[number] = waiter
        self.tell(Ask(number))
        try:
            async with asyncio.timeout(PATIENCE):
                return await waiter
        finally:
            self._sums.pop(number, None)

    async def close(self) -> None:
        """The last words."""
        self.count()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._mailbox.fileno())
        loop.remove_reader(self._handover.fileno())
        await cancel_and_wait(self._tasks)
        if self._writer is not None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._writer.drain()
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    # Connections

    def take(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Takes the connections that the parent hands over."""
        loop = asyncio.get_running_loop()

        async def begin(connection: socket.socket) -> None:
            try:
                await loop.connect_accepted_socket(make, connection)
            except OSError as error:  # it has gone already
                log.debug("a connection was not taken: %s", error)
                connection.close()
                self.closed()

        self._take = lambda connection: self._run(begin(connection))
        loop.add_reader(self._handover.fileno(), self._take_connections)

    def _take_connections(self) -> None:
        for _ in range(AT_ONCE):
            try:
                data, found, _, _ = socket.recv_fds(self._handover, 1, 1)
            except BlockingIOError:
                return
            except OSError:  # no file is left for it: it was closed
                self.closed()
                continue
            if not data:  # the parent has gone
                asyncio.get_running_loop().remove_reader(self._handover.fileno())
                return
            if not found:
                self.closed()
            for file in found:
                connection = socket.socket(fileno=file)
                if self._take is not None:
                    self._take(connection)
                else:
                    connection.close()

    def closed(self) -> None:
        """A connection has ended."""
        self._shared.close_one(self.slot)

    # Siblings

    def start(self, server: Server, count: Callable[[], Figures]) -> None:
        """Hears what siblings say, and counts for them."""
        self._server, self._count = server, count
        asyncio.get_running_loop().add_reader(self._mailbox.fileno(), self._heard)
        self._run(self._count_now_and_then())

    async def _count_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(COUNT_EVERY)
            self.count()

    def _heard(self) -> None:
        assert self._server is not None
        for _ in range(AT_ONCE):
            try:
                data = self._mailbox.recv(65536)
            except OSError:
                return
            match messages.sideways(data):
                case Published(stream, last, count):
                    self._server.polling.heard_of(stream, last, count)
                case MayHaveWork(stream, consumer, count):
                    self._server.polling.wake(stream, consumer, count)
                case Altered(stream, consumer):
                    self._server.heard_altered(stream, consumer)
                case Revoked(id):
                    self._server.tokens.forget(id)
                case SourceChanged(name):
                    self._server.sources.forget(name)

    @property
    def processes(self) -> int:
        """How many there are."""
        return self._shared.processes

    @property
    def restarts(self) -> int:
        """How many were started again."""
        return self._shared.restarts

    def rates(self, number: int) -> Rates:
        """Rates that hold over all processes."""
        return self._shared.rates(number)

    def places(self) -> Places:
        """Polls that wait in all processes."""
        return self._shared.places(self.slot)

    def waiting(self, count: int) -> None:
        """So many wait here for messages."""
        self._shared.set_waiting(self.slot, count)

    def published(self, stream: str, last: int, count: int) -> None:
        """Wakes polls elsewhere. A stream that is published to all the time is looked at all the time, too."""
        if self._is_news(stream) and (others := self._shared.waiting_elsewhere(self.slot)):
            self._send(Published(stream, last, count), others)

    def may_have_work(self, stream: str, consumer: str, count: int) -> None:
        """Wakes polls of this consumer elsewhere: at once, and what comes soon after that in one message."""
        others = self._shared.waiting_elsewhere(self.slot)
        if others and self._is_news(stream, consumer):
            self._send(MayHaveWork(stream, consumer, count), others)
        elif others:
            if (stream, consumer) not in self._to_tell:
                asyncio.get_running_loop().call_later(QUIET, self._tell_may_have_work, stream, consumer)
            self._to_tell[stream, consumer] = self._to_tell.get((stream, consumer), 0) + count

    def _tell_may_have_work(self, stream: str, consumer: str) -> None:
        self._told.pop((stream, consumer), None)
        self.may_have_work(stream, consumer, self._to_tell.pop((stream, consumer)))

    def altered(self, stream: str, consumer: str) -> None:
        """A consumer's settings hold everywhere at once."""
        self._send(Altered(stream, consumer))

    def revoked(self, id: str) -> None:
        """A token is looked up anew everywhere."""
        self._send(Revoked(id))

    def source_changed(self, name: str) -> None:
        """A source is looked up anew everywhere."""
        self._send(SourceChanged(name))

    def _is_news(self, *what: str) -> bool:
        now = monotonic()
        if now - self._told.get(what, 0.0) < QUIET:
            return False
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[what] = now
        return True

    def _send(self, message: Sideways, others: list[int] | None = None) -> None:
        data = messages.datagram(message)
        for other in others if others is not None else range(self.processes):
            if other != self.slot:
                with suppress(OSError):  # it has too much to read: it finds out by looking
                    self._mailboxes[other].send(data, socket.MSG_DONTWAIT)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
