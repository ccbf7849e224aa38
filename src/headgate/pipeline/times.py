"""Times as they are written in a pipeline."""

from __future__ import annotations

import datetime

from ..errors import InvalidPosition


def parse_time(given: str | None, what: str) -> datetime.datetime | None:
    """A time; without a zone it is UTC."""
    if given is None:
        return None
    try:
        found = datetime.datetime.fromisoformat(given)
    except ValueError as error:
        raise InvalidPosition(
            f'{what} is "{given}", which is not a time', hint="write for instance 2026-05-01 or 2026-05-01T14:30:00Z"
        ) from error
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
