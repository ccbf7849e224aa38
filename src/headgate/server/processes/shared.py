"""Numbers that the processes of one server share, in memory that all of them have mapped.

The parent makes it before it forks. What only one process writes (its own column) needs no lock. Rates are read and
written under a lock of the file, which the kernel drops when a process dies; who does not get it at once goes on
without: then one request too many may be let through.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from time import monotonic
from typing import IO

from ..http.limits import Places, Rates, refilled

WAYS = 8  # rows of a group: a name is looked for in one group alone
TRIES = 50  # to get a lock that somebody holds for some microseconds
RATE_GROUPS, PLACE_GROUPS = 2048, 1024

_RATE = struct.Struct("=Qdd")  # hash of the name, what is left, when that was


class Shared:
    """The memory, and what it is divided into."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._place = struct.Struct(f"=Q{processes}I")  # hash of the name, polls that wait in each process
        rates = RATE_GROUPS * WAYS * _RATE.size
        places = PLACE_GROUPS * WAYS * self._place.size
        head = 16 * processes + 8
        size = head + 2 * rates + places
        self._file: IO[bytes] = _nameless()
        self._file.truncate(size)
        self.memory = mmap.mmap(self._file.fileno(), size)
        whole = memoryview(self.memory)
        self._closed = whole[: 8 * processes].cast("Q")
        self._waiting = whole[8 * processes : 16 * processes].cast("Q")
        self._restarts = whole[16 * processes : head].cast("Q")
        self._rates = [head, head + rates]
        self._places = head + 2 * rates

    def rates(self, number: int) -> SharedRates:
        """One of the two tables of rates: 0 of tokens, 1 of webhooks."""
        return SharedRates(self, self._rates[number])

    def places(self, slot: int) -> SharedPlaces:
        """Polls that wait at consumers, as a process sees and counts them."""
        return SharedPlaces(self, self._places, self._place, slot)

    def closed(self, slot: int) -> int:
        """How many connections of this process have ended."""
        return self._closed[slot]

    def close_one(self, slot: int) -> None:
        """A connection of this process has ended."""
        self._closed[slot] += 1

    def set_waiting(self, slot: int, count: int) -> None:
        """So many wait in this process for messages."""
        self._waiting[slot] = count

    def waiting_elsewhere(self, slot: int) -> list[int]:
        """The other processes in which somebody waits."""
        return [other for other, count in enumerate(self._waiting) if count and other != slot]

    @property
    def restarts(self) -> int:
        """How many processes were started again."""
        return self._restarts[0]

    def count_restart(self) -> None:
        """One was started again."""
        self._restarts[0] += 1

    def forget(self, slot: int) -> None:
        """The process has ended: it has no connections, and nobody waits in it."""
        self._closed[slot] = self._waiting[slot] = 0
        self.places(slot).clear()

    @contextmanager
    def locked(self, offset: int, size: int) -> Iterator[None]:
        """Keeps other processes out of a part of the memory, for a moment. It is tried; nobody ever waits."""
        file, has_it = self._file.fileno(), False
        for _ in range(TRIES):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, size, offset)
            except OSError:
                continue
            has_it = True
            break
        try:
            yield
        finally:
            if has_it:
                fcntl.lockf(file, fcntl.LOCK_UN, size, offset)


def _nameless() -> IO[bytes]:
    """A file without a name, in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("headgate"), "r+b")  # noqa: PTH123 - as long as the process lives
    return tempfile.TemporaryFile()


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


class SharedRates(Rates):
    """The rates of tokens over all processes."""

    def __init__(self, shared: Shared, offset: int, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(clock)  # a monotonic clock is the same in all processes of a machine
        self._shared = shared
        self._offset = offset

    def _take(self, token: str, rate: int, now: float) -> float:
        key, memory = _hash(token), self._shared.memory
        group = self._offset + key % RATE_GROUPS * WAYS * _RATE.size
        with self._shared.locked(group, WAYS * _RATE.size):
            at, before, oldest = group, None, float("inf")
            for row in range(group, group + WAYS * _RATE.size, _RATE.size):
                found, left, when = _RATE.unpack_from(memory, row)
                if found == key:
                    at, before = row, (left, when)
                    break
                if when < oldest:  # one that was not used for longest has its full rate by now
                    at, oldest = row, when
            left = refilled(before, rate, now)
            _RATE.pack_into(memory, at, key, left - 1 if left >= 1 else left, now)
        return left - 1


class SharedPlaces(Places):
    """Polls that wait at consumers, over all processes."""

    def __init__(self, shared: Shared, offset: int, row: struct.Struct, slot: int) -> None:
        super().__init__()
        self._shared = shared
        self._offset = offset
        self._row = row
        self._slot = slot

    def _count(self, place: tuple[str, str]) -> int:
        at = self._find(place)
        return super()._count(place) if at is None else sum(self._row.unpack_from(self._shared.memory, at)[1:])

    def _add(self, place: tuple[str, str], amount: int) -> None:
        super()._add(place, amount)
        if (at := self._find(place)) is not None:
            struct.pack_into("=I", self._shared.memory, at + 8 + 4 * self._slot, super()._count(place))

    def clear(self) -> None:
        """Nobody waits in this process."""
        for row in range(self._offset, self._offset + PLACE_GROUPS * WAYS * self._row.size, self._row.size):
            struct.pack_into("=I", self._shared.memory, row + 8 + 4 * self._slot, 0)

    def _find(self, place: tuple[str, str]) -> int | None:
        """Where the consumer's row is; one that nobody waits at gives way. None: each process counts for itself."""
        key, memory, size = _hash("\0".join(place)), self._shared.memory, self._row.size
        group = self._offset + key % PLACE_GROUPS * WAYS * size
        rows = range(group, group + WAYS * size, size)
        for row in rows:
            if self._row.unpack_from(memory, row)[0] == key:
                return row
        with self._shared.locked(group, WAYS * size):
            for row in rows:  # another process may just have made it
                if self._row.unpack_from(memory, row)[0] == key:
                    return row
            for row in rows:
                if not any(self._row.unpack_from(memory, row)[1:]):
                    struct.pack_into("=Q", memory, row, key)
                    return row
        return None
