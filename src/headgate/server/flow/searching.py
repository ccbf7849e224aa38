"""Searches for what no index knows: a part of the log at a time, and not without end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...types import StoredMessage

MOST = 5000  # messages that one search looks at
STEP = 250  # at a time


async def search(
    look: Callable[[int, int | None, int | None], Awaitable[list[StoredMessage]]],
    is_wanted: Callable[[StoredMessage], bool],
    limit: int,
    backward: bool,
    before: int | None,
    after: int | None,
) -> tuple[list[StoredMessage], int | None]:
    """Up to `limit` messages that are wanted, and the seq to go on from unless that was the end of the log.

    `look(n, before, after)` has the next n messages, in the order that is asked for.
    """
    found: list[StoredMessage] = []
    for _ in range(0, MOST, STEP):
        page = await look(STEP, before, after)
        for m in page:
            if is_wanted(m):
                found.append(m)
                if len(found) == limit:
                    return found, m.seq
        if len(page) < STEP:
            return found, None
        if backward:
            before = page[-1].seq
        else:
            after = page[-1].seq
    return found, before if backward else after
