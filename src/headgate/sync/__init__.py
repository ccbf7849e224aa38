# Generated from src/headgate/aio/__init__.py by tools/generate_sync.py: do not edit, run `make sync`.
"""The SDK, synchronous. The synchronous twin in `headgate.sync` is generated from this package: run `make sync`."""

from .client import Headgate
from .consumer import Consumer
from .insights import Insights
from .message import Message
from .sources import Sources
from .stream import Stream

__all__ = ["Consumer", "Headgate", "Insights", "Message", "Sources", "Stream"]
