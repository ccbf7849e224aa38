"""The HTTP request that stands for each statement of the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..database import statements
from ..errors import NotOverHttp
from . import looking, messages, operate, tables  # noqa: F401 - they fill the table
from .request import CALLS, USE_THE_DATABASE, Made

_NO_FORM = {
    statements.MAINTAIN: "the server maintains its database by itself: there is nothing to do for a client over HTTP",
    statements.VERSIONS: "versions are compared in the database itself, which a client over HTTP does not reach",
    statements.SEGMENTS: "segments are listed in the database itself, which a client over HTTP does not reach",
    statements.COMPACT: "segments are compacted in the database itself, which a client over HTTP does not reach",
    statements.TICK: "ticks are made in the database itself, which a client over HTTP does not reach",
    statements.NOTE_TIMINGS: "timings are noted in the database itself, which a client over HTTP does not reach",
    statements.CREATE_TOKEN: "tokens are drawn by the server over HTTP",
}


def request(query: str, params: Sequence[Any]) -> Made:
    """What stands for a statement."""
    made = CALLS.get(query)
    if made is None:
        raise NotOverHttp(_NO_FORM.get(query, "SQL cannot be run over HTTP"), hint=USE_THE_DATABASE)
    return made(*params)
