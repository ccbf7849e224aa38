"""Where a history takes place."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from psycopg.conninfo import make_conninfo

from headgate.postgres.cluster import Cluster

from .proxy import Proxy


class Environment(NamedTuple):
    """Where a history takes place, and what may be done to it."""

    url: str  # of the database, for those who must not be disturbed
    cluster: Cluster | None = None  # ours, so that it may be killed
    proxy: Proxy | None = None  # through which the sessions connect
    standby: Cluster | None = None  # of that cluster
    switch: Proxy | None = None  # through which everybody connects, so that another server can take over
    disk: Path | None = None  # that the cluster has for itself

    @property
    def sessions_url(self) -> str:
        return self.url if self.proxy is None else make_conninfo(self.url, host=str(self.proxy.directory), port=5432)
