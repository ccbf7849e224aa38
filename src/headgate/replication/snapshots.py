"""Which transactions a snapshot sees, and which keys were changed by those that it does not. No I/O.

PostgreSQL writes the commit of a transaction into its WAL before others see it, by seconds where a synchronous standby
is slow. So a change may have been read from the WAL, and a row that is read from its table afterwards is still the old
one. Places in the WAL cannot tell; the snapshot that a row was read with can.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_KEYS = 100_000  # remembered of one transaction; more stand for all keys of its tables


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `pg_current_snapshot()` says: xmin:xmax:those in progress between them."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def read(cls, text: str) -> Snapshot:
        """A snapshot from its text."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def full(self, xid: int) -> int:
        """The number of a transaction with its epoch, of which the WAL has the lower 32 bits: the nearest one."""
        return self.xmax + ((xid - self.xmax + 2**31) % 2**32) - 2**31

    def sees(self, xid: int) -> bool:
        """Whether a transaction that has committed is visible; `xid` is of 32 bits."""
        full = self.full(xid)
        return full < self.xmax and full not in self.running


@dataclass(slots=True)
class _Touched:
    keys: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)  # all of whose rows count as changed


class RecentChanges:
    """The keys that transactions have changed, by transaction, for as long as a snapshot might not see one."""

    def __init__(self) -> None:
        self._by_xid: dict[int, _Touched] = {}

    def note(self, xid: int, key: str, table: str, *, is_whole: bool = False) -> None:
        """A transaction has changed a row; `is_whole`: all rows of the table."""
        touched = self._by_xid.get(xid)
        if touched is None:
            touched = self._by_xid[xid] = _Touched()
        if is_whole or len(touched.keys) >= MOST_KEYS:
            touched.tables.add(table)
        else:
            touched.keys.add(key)

    def hidden_from(self, snapshot: Snapshot) -> tuple[set[str], set[str]]:
        """The keys, and the tables as a whole, that were changed by transactions which a snapshot does not see."""
        keys: set[str] = set()
        tables: set[str] = set()
        for xid, touched in self._by_xid.items():
            if not snapshot.sees(xid):
                keys |= touched.keys
                tables |= touched.tables
        return keys, tables

    def forget(self, snapshot: Snapshot) -> None:
        """Forgets what a snapshot sees: later ones do, too."""
        self._by_xid = {xid: t for xid, t in self._by_xid.items() if not snapshot.sees(xid)}

    def clear(self) -> None:
        """Forgets everything."""
        self._by_xid.clear()

    def __len__(self) -> int:
        return len(self._by_xid)
