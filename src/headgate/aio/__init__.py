"""The SDK, asynchronous. The synchronous twin in `headgate.sync` is generated from this package: run `make sync`."""

from .client import AsyncHeadgate
from .consumer import AsyncConsumer
from .insights import AsyncInsights
from .message import AsyncMessage
from .sources import AsyncSources
from .stream import AsyncStream

__all__ = ["AsyncConsumer", "AsyncHeadgate", "AsyncInsights", "AsyncMessage", "AsyncSources", "AsyncStream"]
