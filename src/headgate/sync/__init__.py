# Generated from src/headgate/aio/__init__.py by tools/generate_sync.py: do not edit, run `make sync`.
"""The SDK, synchronous. The synchronous twin in `headgate.sync` is generated from this package: run `make sync`.

`client` is what users begin with, `stream`, `consumer` (with `consumer_operations`) and `message` what they get from
it; `sources` and `table_sources` bring messages from elsewhere, `insights` looks. `database` runs their statements: on
connections (`pooled`), or over HTTP (`transport`). `migrating` makes the schema, `suggesting` helps misspelt names.
"""

from typing import TYPE_CHECKING, Any

from .client import Headgate
from .consumer import Consumer
from .insights import Insights
from .message import Message
from .stream import Stream

if TYPE_CHECKING:
    from .sources import Sources

__all__ = ["Consumer", "Headgate", "Insights", "Message", "Sources", "Stream"]


def __getattr__(name: str) -> Any:
    if name == "Sources":  # it brings all that reading tables needs
        from .sources import Sources

        return Sources
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
