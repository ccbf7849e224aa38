"""Whether a server's WAL still is the one that was read: a standby that is promoted begins another timeline.

A standby that was behind when it was promoted never had what came last. Its WAL goes on from where it was, and soon it
is longer than what was read: places alone do not tell. The history of its timelines does.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, sql

from ..errors import SourceBlocked
from .troubles import READ_ANEW
from .wire import lsn_number, lsn_text


async def check_timeline(conn: AsyncConnection[Any], known: int | None, read: int) -> int:
    """The timeline of a server; SourceBlocked if what was read up to `read` on `known` is not part of it."""
    row = await (await conn.execute("IDENTIFY_SYSTEM")).fetchone()
    assert row is not None
    now = int(row[1])
    if known is None or known == now:
        return now
    row = await (await conn.execute(sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(now)))).fetchone()
    text = row[1] if row is not None else ""
    left = left_at(text if isinstance(text, str) else bytes(text).decode(errors="replace"), known)
    if left is None or left < read:
        at = "nowhere" if left is None else f"at {lsn_text(left)}"
        raise SourceBlocked(
            f"another server was promoted: it left the WAL that was read {at}, and {lsn_text(read)} was read already, "
            "so what the stream has since never happened there, and what happened there would be missing",
            hint=READ_ANEW,
        )
    return now


def left_at(history: str, timeline: int) -> int | None:
    """Where a history of timelines left one of them; None if that is not in it."""
    for line in history.splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 2 and words[0] == str(timeline):
            return lsn_number(words[1])
    return None
