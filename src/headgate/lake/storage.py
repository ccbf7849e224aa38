"""Files of a lake: in a directory, or in an object store by URL. Credentials come from the environment only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from ..errors import InvalidArgument
from .secrets import Secret, plain

CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")  # variables that object stores are set up with
NONE = Secret("{}")


@dataclass(frozen=True)
class Location:
    """Where a table is. It travels to the executors, so what it shows leaves the credentials out."""

    uri: str
    credentials: Secret = NONE

    @property
    def options(self) -> dict[str, str]:
        """What an object store is opened with."""
        return dict(json.loads(plain(self.credentials)))

    def with_plain_credentials(self) -> Location:
        """The same for tasks of a streaming query."""
        return Location(self.uri, plain(self.credentials))

    @property
    def local(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.uri

    def files(self) -> pafs.FileSystem:
        """Its files, by their paths inside the table."""
        if self.local:
            return pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))

    def sync_to_disk(self, path: str) -> None:
        """Makes sure that a file outlives a loss of power: what the archive has may be removed from the database."""
        if not self.local:
            return
        full = Path(self.uri) / path
        for target in (full, full.parent):
            handle = os.open(target, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def location_of(given: str) -> Location:
    """The place that a directory or a URL names."""
    if "://" not in given:
        return Location(str(Path(given).expanduser().resolve()))
    parts = urlsplit(given)
    if parts.scheme == "file":
        return Location(unquote(parts.path))
    if parts.username or parts.password:
        raise InvalidArgument(
            "a table's URL must not hold credentials", hint="set AWS_ACCESS_KEY_ID and so on in the environment"
        )
    found = {k: v for k, v in os.environ.items() if k.startswith(CREDENTIALS)}
    return Location(given.rstrip("/"), Secret(json.dumps(found)))
