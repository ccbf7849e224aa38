"""One look at the database for all that ask, and nobody waits for a slow one."""

from __future__ import annotations

import asyncio

import pytest

from headgate.server.flow import snapshots
from headgate.server.flow.snapshots import Snapshot, Snapshots


class Looks:
    """Looks that end when they are told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        mine = self.begun
        await self.go.wait()
        return mine


async def started() -> None:
    """What was begun runs until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(snapshots, "monotonic", lambda: now[0])
    return now


async def test_many_ask_and_one_looks(clock: list[float]) -> None:
    looks = Looks()
    snapshot = Snapshot(looks)
    asked = [asyncio.create_task(snapshot.get()) for _ in range(10)]
    await started()
    asked[0].cancel()  # who goes away takes it from nobody
    looks.go.set()
    assert await asyncio.gather(*asked[1:]) == [1] * 9
    assert await snapshot.get() == 1
    clock[0] += 1.5
    assert await snapshot.get() == 2


async def test_nobody_waits_for_a_slow_look(clock: list[float]) -> None:
    looks = Looks()
    snapshot = Snapshot(looks)
    first = asyncio.create_task(snapshot.get())
    await started()
    clock[0] += 2  # so long it takes
    looks.go.set()
    assert await first == 1
    clock[0] += 4
    assert await snapshot.get() == 1
    assert looks.begun == 1
    clock[0] += 2  # five seconds after the first one
    await slow_look(snapshot, looks, clock)
    clock[0] += 119
    assert await snapshot.get() == 2
    assert looks.begun == 2, "a sixtieth of the time at most"
    clock[0] += 2
    looks.go.clear()
    assert await snapshot.get() == 2
    await started()
    looks.go.set()
    clock[0] += 600
    assert await snapshot.get() == 3


async def test_one_that_had_to_wait_is_not_what_looking_costs(clock: list[float]) -> None:
    looks = Looks()
    snapshot = Snapshot(looks)
    looks.go.set()
    assert await snapshot.get() == 1  # in no time
    clock[0] += 2
    looks.go.clear()
    await slow_look(snapshot, looks, clock)
    clock[0] += 2
    await snapshot.get()
    await started()
    assert looks.begun == 3


async def slow_look(snapshot: Snapshot[int], looks: Looks, clock: list[float]) -> None:
    """A look that takes two seconds."""
    looks.go.clear()
    asked = asyncio.create_task(snapshot.get())
    await started()
    clock[0] += 2
    looks.go.set()
    await asked
    await started()


async def test_what_failed_is_asked_again(clock: list[float]) -> None:
    async def look() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("away")
        return 7

    tries: list[int] = []
    snapshot = Snapshot(look)
    with pytest.raises(ValueError, match="away"):
        await snapshot.get()
    assert await snapshot.get() == 7


async def test_snapshots_of_many_things() -> None:
    async def look(*about: object) -> list[object]:
        asked.append(about)
        return [*about]

    asked: list[object] = []
    snapshots = Snapshots(look, 60.0)
    assert [await snapshots.get("a", n) for n in (1, 2, 1)] == [["a", 1], ["a", 2], ["a", 1]]
    assert asked == [("a", 1), ("a", 2)]
    for n in range(Snapshots.MOST):
        await snapshots.get("b", n)
    await snapshots.get("a", 1)
    assert asked.count(("a", 1)) == 2


async def test_a_small_database_is_looked_at_often_on_a_busy_machine(clock: list[float]) -> None:
    looks = Looks()
    snapshot = Snapshot(looks, longest=lambda seen: 2.0)
    for n in (1, 2, 3):
        await slow_look(snapshot, looks, clock)
        assert looks.begun == n
        clock[0] += 2.1
