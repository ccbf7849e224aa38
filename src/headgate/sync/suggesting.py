# Generated from src/headgate/aio/suggesting.py by tools/generate_sync.py: do not edit, run `make sync`.
"""Streams and consumers that may have been meant by a misspelt name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..database import statements
from ..errors import ConsumerNotFound, StreamNotFound
from ..hints import did_you_mean, similar

if TYPE_CHECKING:
    from .database import Database


def suggest(hg: Database, error: StreamNotFound | ConsumerNotFound, params: Sequence[Any]) -> None:
    """Puts them before the error's hint. `params` begin with the stream, and the consumer if it is about one."""
    names = params[: 1 if isinstance(error, StreamNotFound) else 2]
    if error.similar is not None or not names or not all(isinstance(name, str) for name in names):
        return
    query = statements.STREAM_NAMES if isinstance(error, StreamNotFound) else statements.CONSUMER_NAMES
    try:
        found = hg._run(query, names[:-1], None, False)
    except Exception:  # whoever may not list them is told nothing; what failed is said already
        return
    error.similar = similar(names[-1], (name for (name,) in found))
    error.hint = did_you_mean(error.similar) + (error.hint or "")
