"""The command line: thin over the SDK. A module for each noun, and `call.py` for what all commands share.

A command is a function of a Call and its arguments that returns an exit code (None: done).
"""

from __future__ import annotations

from . import (  # each adds its commands
    again,
    channels,
    consumers,
    contexts,
    dead,
    discarding,
    messages,
    operating,
    pipelines,
    receiving,
    sending,
    settling,
    sources,
    streams,
    tokens,
)
from .app import app, main
from .operating import BENCHMARKS

__all__ = [
    "BENCHMARKS", "again", "app", "channels", "consumers", "contexts", "dead", "discarding", "main", "messages",
    "operating",
    "pipelines", "receiving", "sending", "settling", "sources", "streams", "tokens",
]  # fmt: skip
