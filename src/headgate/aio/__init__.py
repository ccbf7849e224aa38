"""The SDK, asynchronous. The synchronous twin in `headgate.sync` is generated from this package: run `make sync`.

`client` is what users begin with, `stream`, `consumer` (with `consumer_operations`) and `message` what they get from
it; `sources` and `table_sources` bring messages from elsewhere, `insights` looks. `database` runs their statements: on
connections (`pooled`), or over HTTP (`transport`). `migrating` makes the schema, `suggesting` helps misspelt names.
"""

from typing import TYPE_CHECKING, Any

from .client import AsyncHeadgate
from .consumer import AsyncConsumer
from .insights import AsyncInsights
from .message import AsyncMessage
from .stream import AsyncStream

if TYPE_CHECKING:
    from .sources import AsyncSources

__all__ = ["AsyncConsumer", "AsyncHeadgate", "AsyncInsights", "AsyncMessage", "AsyncSources", "AsyncStream"]


def __getattr__(name: str) -> Any:
    if name == "AsyncSources":  # it brings all that reading tables needs
        from .sources import AsyncSources

        return AsyncSources
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
