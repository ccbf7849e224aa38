"""What a forked process does with the connections of its parent: it lets go of them, and makes its own.

Two processes that write to one socket get each other's answers. So before any code of a forked child runs
(multiprocessing, gunicorn --preload) every connection that it inherited is cut off from the server, of which the server
and the parent notice nothing, and its clients connect anew when they are next used.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import psycopg


class Pool(Protocol):
    """Who has connections."""

    def _forget(self) -> None:
        """This process is a forked child: what the pool has is its parent's."""


_pools: WeakSet[Any] = WeakSet()
_connections: WeakSet[psycopg.BaseConnection[Any]] = WeakSet()
_process_name = ""


def watch_pool(pool: Pool) -> None:
    """Has a pool forget its connections in forked children."""
    _pools.add(pool)


def watch_connection(conn: psycopg.BaseConnection[Any]) -> None:
    """Cuts a connection off in forked children."""
    _connections.add(conn)


def watched() -> list[psycopg.BaseConnection[Any]]:
    """The connections of this process's pools."""
    return list(_connections)


def process_name() -> str:
    """A name of this process, for those who ask who has a message."""
    global _process_name
    if not _process_name:
        _process_name = f"{socket.gethostname()}-{os.getpid()}"
    return _process_name


def _in_child() -> None:
    global _process_name
    _process_name = ""
    ours, theirs = socket.socketpair()
    theirs.close()
    for conn in list(_connections):
        # In place of the socket stands one that nobody listens to: whatever still has the connection in the child, such
        # as a `with` block that is left, can neither say anything to the server nor keep the session open.
        with suppress(psycopg.Error, OSError):
            os.dup2(ours.fileno(), conn.fileno(), inheritable=False)
    _connections.clear()
    ours.close()
    for pool in list(_pools):
        pool._forget()


os.register_at_fork(after_in_child=_in_child)
