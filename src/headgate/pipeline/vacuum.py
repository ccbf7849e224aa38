"""Removing files that no version of a table needs any more: now and then while a pipeline runs, and at its end.

While it runs only what the table's log names as removed is looked at; files in no commit (of attempts that failed) are
found by listing the table, once a day and at the end. Readers of an older version, and queries whose offsets name one,
have `keep_files` to finish.
"""

from __future__ import annotations

import time

from ..lake.table import LakeTable, Writer

EVERY = 3600.0  # seconds between two looks at what the log names
LIST_EVERY = 86400.0  # and between two listings of the whole table
HOURS = {"hour": 1, "day": 24}


class Vacuum:
    """What is to be removed of one table, and when."""

    def __init__(self, lake: LakeTable, keep_files: str) -> None:
        number, _, unit = keep_files.partition(" ")
        self._lake, self._hours = lake, int(number) * HOURS[unit.removesuffix("s")]
        self._looked = self._listed = time.monotonic()
        self._gone: set[str] = set()

    def due(self, writer: Writer) -> int:
        """Looks, if it is time; returns how many files are gone."""
        now = time.monotonic()
        if now < self._looked + EVERY:
            return 0
        whole = now >= self._listed + LIST_EVERY
        self._looked, self._listed = now, now if whole else self._listed
        found = self._lake.vacuum(writer, self._hours, whole=whole, known=self._gone)
        self._gone |= found
        return len(found)

    def finish(self, writer: Writer) -> int:
        """Removes everything that may go."""
        return len(self._lake.vacuum(writer, self._hours, whole=True, known=self._gone))
