"""Looks at the slots of sources that nobody reads, because they are paused or cannot be: they keep WAL all the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..database import statements
from . import looking
from .connections import connect
from .troubles import READ_ANEW, with_name
from .wire import lsn_text

log = logging.getLogger("headgate.sources")

WATCH_EVERY = 15.0  # seconds
SECONDS = 30.0  # for one source


async def watch(run: Callable[..., Awaitable[list[Any]]]) -> None:
    """Looks at them now and then, until it is cancelled. Any number of processes may."""
    while True:
        await asyncio.sleep(WATCH_EVERY)
        try:
            for row in await run(statements.SOURCES_TO_WATCH, (f"{WATCH_EVERY} s",)):
                try:
                    async with asyncio.timeout(SECONDS):
                        await look_at(run, *row)
                except Exception as error:  # one that cannot be reached says so where it is read
                    log.debug("cannot look at the slot of the source %s: %s", row[0], error)
        except Exception as error:  # the next round tries again
            log.debug("cannot look at slots: %s", error)


async def look_at(
    run: Callable[..., Awaitable[list[Any]]], name: str, url: str, slot: str, drop_bytes: int | None
) -> None:
    """Notes what the slot of a source keeps; drops it when that is more than its limit."""
    async with await connect(url) as source:
        seen = await looking.look(source, "", slot)
        if seen.is_standby:
            return
        if seen.wal_status is None or seen.wal_status == "lost":
            gone = "is gone" if seen.wal_status is None else "was cut off by the server (max_slot_wal_keep_size)"
            said = f'the replication slot "{slot}" {gone}: changes are missing'
            await run(statements.LOSE_SOURCE, (name, said, with_name(READ_ANEW, name)))
        elif drop_bytes is not None and (seen.retained or 0) > drop_bytes:
            await looking.drop_slot(source, slot)
            lost = looking.too_much(seen.retained or 0, drop_bytes)
            log.warning("the source %s is lost: %s", name, lost.message)
            await run(statements.LOSE_SOURCE, (name, lost.message, with_name(READ_ANEW, name)))
        else:
            await run(statements.NOTE_SOURCE_SLOT, (name, lsn_text(seen.wal_end), seen.retained, seen.wal_status))
