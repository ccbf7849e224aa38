"""Senders: sessions that write to the stream, message by message or in batches that count once."""

from __future__ import annotations

import json
from typing import Any

from ..presets.preset import STREAM, channel_of
from ..record import Sent
from .operators import first
from .session import TortureSession

STAGE = "select headgate.stage(%s, %s, %s, %s)"
FILL = """
insert into headgate.{} (key, data, channel)
  select * from unnest(%s::text[], %s::text[], %s::text[]) returning true
"""
# (if there are two of one, the last: the judge sees then that there are)
LAST_SEQS = "select m.data, max(m.seq) from headgate.log_s m where m.data = any(%s) group by m.data"


class SenderSession(TortureSession):
    """The only writer of its keys, so that it knows their order; in upsert streams it also writes keys of all."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.longest_rest = self.preset.pace
        families = self.preset.families
        self.keys = [f"{families[i % len(families)]}.{self.name}-{i}" for i in range(self.preset.keys)]
        self.count = 0
        self.used: list[Sent] = []  # messages with ids
        self.batch: list[Sent] = []  # what is to be sent exactly once
        self.number_of_batch = 1

    def step(self) -> None:
        if self.transaction is None and self.random.random() < self.preset.staged:
            self.write_batch()
            return
        # ids in a fixed order within a transaction: all are this session's own, so that nobody waits for them
        messages = [self.message() for _ in range(self.random.randint(1, self.preset.batch))]
        event = self.send(messages)
        if not event.problem:
            self.used += [m for m in messages if m.id]
            del self.used[:-12]

    def write_batch(self) -> None:
        """Stage a batch, and send it: again until that counts, with the same number."""
        self.batch = self.batch or [self.message_of_batch() for _ in range(self.preset.batch)]
        with_channels = self.preset.lane_by == "channel"
        name = self.call("stage", STAGE, [STREAM, self.name, self.number_of_batch, with_channels], first).answer
        columns = [[m.key for m in self.batch], [m.data for m in self.batch], [m.channel for m in self.batch]]
        if name is None or self.call("fill", FILL.format(name), columns, len).problem:
            return
        if self.random.random() < 0.5:
            self.send_staged(name)
        else:
            self.in_transaction(lambda: self.send_staged(name))
        asked = "select headgate.last_written(%s, %s)"
        is_written = self.call("last_written", asked, [STREAM, self.name], first).answer == self.number_of_batch
        if is_written and self.random.random() < 0.7:  # otherwise as one who does not know that it counted
            self.number_of_batch += 1
            self.batch = []

    def send_staged(self, name: str) -> None:
        self.call(
            "send",
            "select headgate.send_staged(%s, %s, %s, array[%s], array[%s])",
            [STREAM, self.name, self.number_of_batch, name, len(self.batch)],
            lambda rows: self.seqs_of(self.batch),
            messages=self.batch,
            batch=self.number_of_batch,
        )

    def seqs_of(self, messages: list[Sent]) -> list[int]:
        found: dict[str, int] = dict(self.db.execute(LAST_SEQS, [[m.data for m in messages]]).fetchall())
        return [found[m.data] for m in messages]

    def message_of_batch(self) -> Sent:
        """One that nobody else has; its id is for the judge, who knows by it that it was sent before."""
        message = self.message()
        while message in self.used:
            message = self.message()
        return message._replace(id=f"{self.name}-{self.count:06}", delay=0.0)

    def message(self) -> Sent:
        if self.used and self.random.random() < 0.3:
            return self.random.choice(self.used)
        self.count += 1
        key: str | None = self.random.choice(self.keys)
        if self.preset.upsert and self.random.random() < 0.4:
            key = f"{self.preset.families[0]}.shared-{self.random.randrange(2)}"
        elif self.random.random() < self.preset.keyless:
            key = None
        what = {"value": self.random.choice("ABC")} if self.preset.upsert else {"n": self.count, "by": self.name}
        return Sent(
            key,
            json.dumps({"key": key} | what),
            channel_of(key) if self.preset.lane_by == "channel" else None,
            f"{self.name}-{self.count:06}" if self.random.random() < self.preset.ids else None,
            round(self.random.random() * 0.8, 3) if self.random.random() < self.preset.delays else 0.0,
        )
