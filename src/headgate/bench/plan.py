"""How long and how much a run measures."""

from __future__ import annotations

from dataclasses import dataclass, replace

MESSAGE_BYTES = 200
LANES = 16
FANOUT = 3
RATE = 1000  # messages a second of the latency benchmark


@dataclass(frozen=True)
class BenchPlan:
    """The size of a run."""

    batches: tuple[int, ...] = (1, 10, 100, 1000)
    connections: tuple[int, ...] = (1, 4)
    workers: tuple[int, ...] = (1, 2, 4)
    rounds: int = 3
    seconds: float = 2.0  # of a round
    fanout_messages: int = 60_000
    latency_seconds: float = 8.0
    deep_messages: int = 5_000_000
    fill_seconds: float = 180.0  # what is not filled by then is left out
    pin_seconds: float = 60.0
    channels: int = 1_000  # with work
    idle_lanes: int = 100_000
    active_channels: int = 10_000
    keys: int = 100_000
    looked_messages: int = 1_000_000  # of the stream that is looked at, in
    looked_channels: int = 20_000
    streams: int = 1_000  # with three consumers each
    pgmq_endures: bool = True  # pgmq too gets a deep backlog and a pinned snapshot

    def scaled(self, factor: float) -> BenchPlan:
        """A smaller run, for tests."""
        if factor == 1:
            return self
        return replace(
            self, batches=(10, 100, 1000), connections=(1,), workers=(4,), rounds=1,
            seconds=max(0.02, self.seconds * factor),
            fanout_messages=int(self.fanout_messages * factor), latency_seconds=max(0.2, self.latency_seconds * factor),
            deep_messages=int(self.deep_messages * factor), pin_seconds=self.pin_seconds * factor,
            channels=max(20, int(self.channels * factor)), idle_lanes=int(self.idle_lanes * factor),
            active_channels=int(self.active_channels * factor), keys=int(self.keys * factor),
            looked_messages=int(self.looked_messages * factor), looked_channels=int(self.looked_channels * factor),
            streams=max(5, int(self.streams * factor)),
        )  # fmt: skip


FULL = BenchPlan()
QUICK = BenchPlan(rounds=5, seconds=0.6, fanout_messages=20_000, latency_seconds=2, fill_seconds=60, pgmq_endures=False)
