"""Searches for what no index knows: a part of the log at a time, and not without end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...types import StoredMessage

MOST = 5000  # messages that one search looks at
FIRST, STEP = 10, 250  # at a time: few, until it is known how large they are
SMALL, LARGE = 1_000_000, 4_000_000  # characters of such a part, at which more or fewer are fetched
MOST_TEXT = 50_000_000  # characters that one search looks at


async def search(
    look: Callable[[int, int | None, int | None], Awaitable[list[StoredMessage]]],
    text_of: Callable[[StoredMessage], str],
    wanted: str,
    limit: int,
    backward: bool,
    before: int | None,
    after: int | None,
) -> tuple[list[StoredMessage], int | None]:
    """Up to `limit` messages with a text in theirs, and the seq to go on from unless that was the end of the log.

    `look(n, before, after)` has the next n messages, in the order that is asked for.
    """
    found: list[StoredMessage] = []
    looked = characters = 0
    step = FIRST
    while looked < MOST and characters < MOST_TEXT:
        page = await look(min(step, MOST - looked), before, after)
        size = 0
        for m in page:
            text = text_of(m)
            size += len(text)
            if wanted in text.lower():
                found.append(m)
                if len(found) == limit:
                    return found, m.seq
        if len(page) < min(step, MOST - looked):
            return found, None
        looked += len(page)
        characters += size
        step = min(step * 2, STEP) if size < SMALL else max(step // 4, 1) if size > LARGE else step
        if backward:
            before = page[-1].seq
        else:
            after = page[-1].seq
    return found, before if backward else after
