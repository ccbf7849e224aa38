"""The parent of a server's processes: it has the port, hands connections out, and starts again those that died.

It does nothing that could wait: no database, no request. It forks, so it must be the only thread of its program. A
connection goes to the process that has fewest. When the parent dies the port is free at once, and its processes, whose
stream from it ends, finish what they do and end.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from ...errors import Error
from ...service import Pace
from ..operate.metrics import Figures, Metrics
from . import messages
from .child import Child, fork
from .member import Member
from .messages import Ask, Count, Counted, Failed, Leaving, Listening, Ready, Sum
from .shared import Shared

log = logging.getLogger("headgate.server")

AT_ONCE = 64  # connections that are accepted before others get a turn
RESTART = Pace(0.1, 5.0)  # seconds before a process that died soon is started again
SOON = 10.0  # seconds: who lived longer is started again at once
FIRST_TRIES = 3  # of processes that die before any of them was ready, without a word
GATHER = 1.0  # seconds that processes have to say what they counted
LAST_GRACE = 90.0  # seconds until processes that do not end are killed: longer than requests and posts are waited for
NO_FILES = 0.5  # seconds without accepting, when there are no files or no process has room


class Supervisor:
    """Runs a server of several processes until SIGTERM or SIGINT."""

    def __init__(
        self,
        processes: int,
        sockets: list[socket.socket],
        run: Callable[[Member], None],
        ready: Callable[[Ready], None],
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Error("several processes need the main thread", hint="run one process, or `headgate up` on its own")
        self._sockets = sockets
        self._run = run
        self._ready = ready
        self._shared = Shared(processes)
        self._mailboxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(processes)]
        self._children: list[Child | None] = [None] * processes
        self._starts: dict[int, float] = {0: 0.0}  # of slots: when to start a process there. The first one comes first
        self._pauses = [0.0] * processes
        self._deaths = 0  # before any was ready
        self._failure: Error | None = None
        self._departed = Metrics()  # what processes counted that have ended
        self._asked: list[tuple[float, int, int, set[int]]] = []  # until when, by which slot, its number, who is to say
        self._selector = selectors.DefaultSelector()
        self._accepts_at = 0.0
        self._is_accepting = False
        self._told: Ready | None = None  # by the first process
        self._is_announced = self._is_stopping = False
        self._kill_at = float("inf")

    def run(self) -> None:
        """Until the end. Raises what kept the processes from starting."""
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        before = signal.set_wakeup_fd(wake.fileno())
        handlers = {n: signal.signal(n, self._signalled) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}
        self._selector.register(woken, selectors.EVENT_READ, lambda: _empty(woken))
        try:
            while not (self._is_stopping and not any(self._children)):
                self._turn()
        finally:
            for child in filter(None, self._children):  # something went wrong here: they finish what they do
                child.dismiss()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            self._selector.close()
            for one in (woken, wake, *self._sockets, *(m for pair in self._mailboxes for m in pair)):
                one.close()
        if self._failure is not None:
            raise self._failure

    def _signalled(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._stop()

    def _stop(self) -> None:
        """Nothing new; every process finishes what it does."""
        if not self._is_stopping:
            self._is_stopping = True
            self._kill_at = monotonic() + LAST_GRACE
            self._starts.clear()

    # One turn

    def _turn(self) -> None:
        now = monotonic()
        if self._is_stopping:
            self._accept(False)
            for one in self._sockets:
                one.close()  # the port is free
            for child in filter(None, self._children):
                child.dismiss()
            if now >= self._kill_at:
                log.error("processes did not end within %g s, and are killed", LAST_GRACE)
                for child in filter(None, self._children):
                    child.kill()
                self._kill_at = float("inf")
        for slot, at in list(self._starts.items()):
            if at <= now:
                del self._starts[slot]
                self._start(slot)
        self._answer(now)
        self._accept(now >= self._accepts_at and self._least() is not None)
        due = [self._kill_at, *self._starts.values(), *(until for until, *_ in self._asked)]
        if not self._is_accepting and not self._is_stopping:
            due.append(max(self._accepts_at, now + 0.05) if self._least() is not None else float("inf"))
        for child in filter(None, self._children):
            if not child.is_deaf:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_more else 0)
                if self._selector.get_key(child.control).events != events:
                    self._selector.modify(child.control, events, child)
        timeout = max(min(due) - monotonic(), 0.0)
        for key, events in self._selector.select(None if timeout == float("inf") else timeout):
            if key.fileobj in self._sockets:
                self._hand_out(key.fileobj)
            elif isinstance(key.data, Child):
                self._hear(key.data, events)
            else:
                key.data()
        self._reap()

    def _accept(self, wanted: bool) -> None:
        if wanted and not self._is_stopping and not self._is_accepting:
            for one in self._sockets:
                self._selector.register(one, selectors.EVENT_READ)
            self._is_accepting = True
        elif self._is_accepting and not (wanted and not self._is_stopping):
            for one in self._sockets:
                self._selector.unregister(one)
            self._is_accepting = False

    # Connections

    def _least(self) -> Child | None:
        """The process that has fewest connections; one that has no database only where none has."""
        serving = [c for c in self._children if c is not None and c.is_listening and not c.is_dismissed]
        return min(
            (c for c in serving if c.is_ready or not any(o.is_ready for o in serving)),
            key=lambda c: c.handed - self._shared.closed(c.slot), default=None,
        )  # fmt: skip

    def _hand_out(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._least() is None:
                return
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections: %s", error)
                self._accepts_at = monotonic() + NO_FILES
                return
            with connection:
                if not self._give(connection):
                    log.warning("a connection was closed: no process takes it")
                    self._accepts_at = monotonic() + NO_FILES / 10
                    return

    def _give(self, connection: socket.socket) -> bool:
        """Hands a connection to the process that has fewest and takes it."""
        while (child := self._least()) is not None:
            try:
                socket.send_fds(child.handover, [b"c"], [connection.fileno()])
            except BlockingIOError:  # it does not even take those that it has
                return False
            except OSError:  # it has just died
                child.is_listening = False
            else:
                child.handed += 1
                return True
        return False

    # Processes

    def _start(self, slot: int) -> None:
        self._shared.forget(slot)
        _empty(self._mailboxes[slot][0])
        inherited = [*self._sockets, *(s for c in self._children if c for s in (c.control, c.handover))]
        try:
            child = fork(slot, self._mailboxes, self._shared, inherited, self._selector, self._run)
        except OSError as error:
            if self._told is None:
                self._fail(Error(f"cannot start a process: {error}", hint="raise `ulimit -u`, or use fewer processes"))
            else:
                self._again(slot, f"cannot start a process: {error}")
            return
        self._children[slot] = child
        self._selector.register(child.control, selectors.EVENT_READ, child)

    def _again(self, slot: int, why: str) -> None:
        """Starts a process in this slot again, later each time."""
        pause = self._pauses[slot] = RESTART.after(self._pauses[slot])
        log.error("%s; another one is started in %.1f s", why, pause)
        self._starts[slot] = monotonic() + pause

    def _fail(self, error: Error) -> None:
        self._failure = self._failure or error
        self._stop()

    def _reap(self) -> None:
        for slot, child in enumerate(self._children):
            if child is None or (status := child.reaped()) is None:
                continue
            while self._hear(child, selectors.EVENT_READ):  # its last words
                pass
            if not child.is_deaf:
                self._selector.unregister(child.control)
            child.close()
            self._children[slot] = None
            if child.figures is not None:
                self._departed.merge(child.figures.lasting())
            self._shared.forget(slot)
            if not self._is_stopping:
                self._replace(child, status)

    def _replace(self, child: Child, status: int) -> None:
        how = f"with exit code {status}" if status >= 0 else f"by signal {-status}"
        if self._told is None:  # none ever worked
            self._deaths += 1
            if child.failure is not None or self._deaths >= FIRST_TRIES:
                self._fail(child.failure or Error(f"the server's processes end as they start, {how}",
                                                  hint="look in the server's log"))  # fmt: skip
                return
        self._shared.count_restart()
        why = child.failure.message if child.failure else f"process {child.pid} has ended {how}"
        if child.is_dismissed and status == 0:
            log.info("%s, as it was asked to; another one is started", why)
            self._starts[child.slot] = 0.0
        elif monotonic() - child.started_at >= SOON:
            self._pauses[child.slot] = 0.0
            log.error("%s; another one is started", why)
            self._starts[child.slot] = 0.0
        else:
            self._again(child.slot, why)

    # What processes say

    def _hear(self, child: Child, events: int) -> bool:
        """Whether there was anything."""
        if events & selectors.EVENT_WRITE:
            child.flush()
        if not events & selectors.EVENT_READ or child.is_deaf:
            return False
        said = child.read()
        for found in said or ():
            match messages.upward(found):
                case Listening():
                    child.is_listening = True
                case Ready() as told:
                    self._heard_ready(child, told)
                case Leaving():
                    child.dismiss()
                case Failed(message, hint):
                    child.failure = Error(message, hint=hint)
                case Counted(figures):
                    child.figures = figures
                    for _, _, _, missing in self._asked:
                        missing.discard(child.slot)
                case Ask(number):
                    self._ask(child, number)
        if self._is_over(child):
            child.is_listening = False
            self._selector.unregister(child.control)
        return bool(said)

    @staticmethod
    def _is_over(child: Child) -> bool:
        return child.is_deaf  # since it was read

    def _heard_ready(self, child: Child, told: Ready) -> None:
        child.is_ready = True
        if self._told is None:
            self._told = told
            self._starts |= dict.fromkeys(range(1, len(self._children)), 0.0)
        if not self._is_announced and all(c is not None and c.is_ready for c in self._children):
            self._is_announced = True
            self._ready(self._told)

    # What they counted

    def _ask(self, child: Child, number: int) -> None:
        others = {c.slot for c in self._children if c is not None and c is not child and c.is_listening}
        for slot in others:
            self._children[slot].send(Count())  # type: ignore[union-attr]
        self._asked.append((monotonic() + GATHER, child.slot, number, others))

    def _answer(self, now: float) -> None:
        """Answers those who asked, once everybody has said it, or the time is up: then with what was said last."""
        for asked in [a for a in self._asked if not a[3] or a[0] <= now]:
            self._asked.remove(asked)
            _, slot, number, _ = asked
            if (child := self._children[slot]) is not None:
                others = [
                    c.figures for c in self._children if c is not None and c is not child and c.figures is not None
                ]
                child.send(Sum(number, [*others, self._past()]))

    def _past(self) -> Figures:
        return self._departed.figures({})


def _empty(one: socket.socket) -> None:
    with suppress(BlockingIOError):
        while one.recv(65536, socket.MSG_DONTWAIT):
            pass
