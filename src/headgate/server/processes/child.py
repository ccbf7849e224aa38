"""A process of the server, as its parent sees it; and how it is made."""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NoReturn

from ...errors import Error
from ..operate.metrics import Figures
from . import messages
from .member import Member
from .messages import Downward, Frames
from .shared import Shared

log = logging.getLogger("headgate.server")

MOST_UNSENT = 64 * 1024 * 1024  # bytes: a process that does not read is told nothing more


class Child:
    """A process that was started."""

    def __init__(self, slot: int, pid: int, control: socket.socket, handover: socket.socket) -> None:
        self.slot = slot
        self.pid = pid
        self.control = control
        self.handover = handover
        self.started_at = monotonic()
        self.handed = 0  # connections
        self.is_listening = self.is_ready = False
        self.is_dismissed = False  # told to end
        self.is_deaf = False  # nothing more comes from it
        self.failure: Error | None = None
        self.figures: Figures | None = None  # what it counted when it last said so
        self._frames = Frames()
        self._unsent = bytearray()
        control.setblocking(False)
        handover.setblocking(False)

    def read(self) -> list[bytes]:
        """What it has said by now."""
        try:
            data = self.control.recv(1024 * 1024)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.is_deaf = True
        return self._frames.feed(data)

    def send(self, message: Downward) -> None:
        """Says something to it, as soon as it reads."""
        if len(self._unsent) < MOST_UNSENT:
            self._unsent += messages.frame(message)
            self.flush()

    @property
    def has_more(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Sends what it reads."""
        try:
            while self._unsent:
                del self._unsent[: self.control.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def dismiss(self) -> None:
        """Has it finish what it does, and end."""
        if not self.is_dismissed:
            self.is_dismissed = True
            with suppress(OSError):
                self.control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Ends it at once. It is ours and not yet waited for, so its number is nobody else's."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def reaped(self) -> int | None:
        """How it ended: its exit code, or below 0 the signal; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def close(self) -> None:
        """Nothing of it is needed any more."""
        self.control.close()
        self.handover.close()


def fork(
    slot: int,
    mailboxes: list[tuple[socket.socket, socket.socket]],
    shared: Shared,
    inherited: list[socket.socket],
    selector: selectors.BaseSelector,
    run: Callable[[Member], None],
) -> Child:
    """Starts a process that runs `run`, and ends. `inherited` are the parent's own, which it must not keep open."""
    control, its_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    handover, its_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    gc.freeze()  # the memory of the parent is shared for as long as nobody writes to it
    try:
        pid = os.fork()
    except OSError:
        for one in (control, its_control, handover, its_handover):
            one.close()
        raise
    if not pid:
        _live(slot, (control, handover, *inherited), selector, lambda: Member(
            slot, its_control, its_handover, mailboxes[slot][0], [to for _, to in mailboxes], shared
        ), run)  # fmt: skip
    its_control.close()
    its_handover.close()
    return Child(slot, pid, control, handover)


def _live(
    slot: int,
    parents: tuple[socket.socket, ...],
    selector: selectors.BaseSelector,
    make: Callable[[], Member],
    run: Callable[[Member], None],
) -> NoReturn:
    """The life of a process. It never returns into its parent's code."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which says what is to be done
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        selector.close()
        for one in parents:
            one.close()
        run(make())
        code = 0
    except SystemExit:  # the parent was told why
        pass
    except BaseException:
        log.exception("process %d of the server failed", slot)
    finally:
        with suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
