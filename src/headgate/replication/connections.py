"""Connections for reading sources: to the database that is read, and to the stream's.

What a role or a database has as limits and defaults is meant for applications: a limit of a minute would end every
transaction that takes longer, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict

APPLICATION = "headgate source"
ENCODING = "UTF8"  # whatever the database has; without a conversion (SQL_ASCII) text would be bytes
OWN_SCHEMA = "headgate"  # whose tables are never read: each message would be a change, and each change a message
SILENCE = 30.0  # seconds after which a server that was asked counts as gone

# How values are written: the same everywhere, exact, and as PostgreSQL reads them again.
_FORMS = {
    "datestyle": "ISO", "intervalstyle": "postgres", "timezone": "UTC", "bytea_output": "hex",
    "extra_float_digits": "1", "xmloption": "content",
}  # fmt: skip

UNLIMITED = {
    "statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0", "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
}  # fmt: skip

# A server that is gone without a word is noticed, also where nothing is being sent to it.
_NOTICING: dict[str, Any] = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4,
    "tcp_user_timeout": round(SILENCE * 1000),
}  # fmt: skip


def connect_sync(url: str, *, replication: bool = False) -> Connection[tuple[Any, ...]]:
    """A connection to the database that is to be read, for looking at it and making what reading needs."""
    return psycopg.connect(
        url, autocommit=True, connect_timeout=10, application_name=APPLICATION, client_encoding=ENCODING,
        replication="database" if replication else None,
    )  # fmt: skip


async def connect(url: str, *, replication: bool = False) -> AsyncConnection[tuple[Any, ...]]:
    """A connection to the database that is read."""
    settings = _FORMS | UNLIMITED | ({"wal_sender_timeout": f"{round(SILENCE)}s"} if replication else {})
    more: dict[str, Any] = {"replication": "database"} if replication else {}
    return await AsyncConnection.connect(
        url, autocommit=True, client_encoding=ENCODING, application_name=APPLICATION, options=_options(url, settings),
        **_NOTICING, **more,
    )  # fmt: skip


async def connect_stream(url: str, *, pooler: bool = False) -> AsyncConnection[tuple[Any, ...]]:
    """A connection to the database of the stream; a pooler takes no settings and prepares no statements."""
    more: dict[str, Any] = {} if pooler else {"options": _options(url, UNLIMITED)}
    return await AsyncConnection.connect(
        url, autocommit=True, application_name=APPLICATION, prepare_threshold=None if pooler else 5,
        **_NOTICING, **more,
    )  # fmt: skip


def _options(url: str, settings: Mapping[str, str]) -> str:
    """Settings of a session, behind those in its URL: some hosts want an option of theirs there."""
    own = conninfo_to_dict(url).get("options")
    given = ["-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in settings.items()]
    return " ".join([*([str(own)] if own else []), *given])
