"""Sources: what brings messages into streams from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..database import statements
from ..database.columns import Array
from ..database.encoding import dump_json
from ..errors import InvalidArgument, SourceNotFound
from ..types import Scheme, SourceInfo, SourceKind
from .table_sources import AsyncTableSources

if TYPE_CHECKING:
    from .client import AsyncHeadgate

CREATE_SOURCE = "create it with hg.sources.create(name, stream); hg.sources.all() lists those that there are"


class AsyncSources(AsyncTableSources):
    """The sources of a database. A webhook source is a URL of the HTTP server: `POST /api/webhooks/<name>`.

    Sources of tables have methods of their own: `add_postgres`, `postgres` and `all_postgres`, `alter_postgres`,
    `pause`, `resume`, `backfill`, `restart_postgres` and `remove_postgres`. They are read by `headgate up`.
    """

    def __init__(self, hg: AsyncHeadgate) -> None:
        self._hg = hg

    async def create(
        self,
        name: str,
        stream: str,
        *,
        kind: SourceKind = "webhook",
        scheme: Scheme = "standard",
        secret: str | Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> SourceInfo:
        """Makes a source whose messages go to a stream.

        `scheme` says how webhooks are signed, `secret` with what (several while it is being changed). `settings`:
        "key", "id" and "channel" say where in the JSON body (`customer.id`, `/customer/id`) or in which header
        (`header:X-Name`) they are; "headers" which headers to keep; "signature", of the scheme hmac, is {"header",
        "algorithm", "encoding", "prefix"}; "tolerance" how many seconds a timestamp may be off; "body" is json or any;
        "rate_limit" is in messages a second.
        """
        params = (name, stream, kind, scheme, as_secrets(secret) or Array(), dump_json(dict(settings or {})), exist_ok)
        await self._hg.run(statements.CREATE_SOURCE, params)
        return await self.get(name)

    async def all(self) -> list[SourceInfo]:
        """All sources."""
        return [SourceInfo(*row) for row in await self._hg.run(statements.SOURCES, (None, None))]

    async def get(self, name: str) -> SourceInfo:
        """One source."""
        for row in await self._hg.run(statements.SOURCES, (name, name)):
            return SourceInfo(*row)
        raise SourceNotFound(f'source "{name}" does not exist', hint=CREATE_SOURCE)

    async def alter(
        self,
        name: str,
        *,
        stream: str | None = None,
        scheme: Scheme | None = None,
        secret: str | Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> SourceInfo:
        """Changes what is given, of the settings those in it; a setting that is None is removed."""
        changed = None if settings is None else dump_json(dict(settings))
        await self._hg.run(statements.ALTER_SOURCE, (name, stream, scheme, as_secrets(secret), changed))
        return await self.get(name)

    async def drop(self, name: str) -> None:
        """Removes a source. What it brought stays."""
        await self._hg.run(statements.DROP_SOURCE, (name,))


def as_secrets(secret: str | Sequence[str] | None) -> Array | None:
    """One secret or several, as a parameter."""
    if secret is None:
        return None
    secrets = [secret] if isinstance(secret, str) else secret
    if not isinstance(secrets, (list, tuple)) or not all(isinstance(s, str) for s in secrets):
        raise InvalidArgument("the secret is not text", hint="pass a str, or a list of them while it is being changed")
    return Array(secrets)
