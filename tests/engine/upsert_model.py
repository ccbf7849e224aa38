"""An upsert stream in plain Python: what it answers to a batch, and what it then holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Update(NamedTuple):
    """A message that is sent."""

    key: str | None
    data: str
    id: str | None = None


class Version(NamedTuple):
    """A message that is in the log."""

    seq: int
    key: str | None
    data: str


@dataclass
class UpsertModel:
    process_unmodified: bool = False
    last_seq: int = 0
    newest: dict[str, Version] = field(default_factory=dict)  # by key
    plain: list[Version] = field(default_factory=list)  # without a key
    ids: dict[str, int] = field(default_factory=dict)  # sent within the dedup window -> the seq that each stands for

    def send(self, batch: Sequence[Update]) -> list[int]:
        return [self._send_one(update) for update in batch]

    def _send_one(self, update: Update) -> int:
        if update.id is not None and update.id in self.ids:
            return self.ids[update.id]
        seq = self._store(update)
        if update.id is not None:
            self.ids[update.id] = seq
        return seq

    def _store(self, update: Update) -> int:
        before = self.newest.get(update.key) if update.key is not None else None
        if before and before.data == update.data and not self.process_unmodified:
            return before.seq
        self.last_seq += 1
        version = Version(self.last_seq, update.key, update.data)
        if update.key is None:
            self.plain.append(version)
        else:
            self.newest[update.key] = version
        return version.seq

    @property
    def log(self) -> list[Version]:
        return sorted([*self.newest.values(), *self.plain])

    def remove_all(self, last_seq: int) -> None:
        """Everything was acked and its segment removed; ending that drew seqs."""
        self.newest.clear()
        self.plain.clear()
        self.last_seq = last_seq
