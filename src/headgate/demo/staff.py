"""Who handles the shop's messages, and fails at some of them as real services do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from ..aio import AsyncHeadgate, AsyncMessage
from ..worker.lifecycle import AsyncWorker
from .traffic import DAY

Handler = Callable[[AsyncMessage], Awaitable[None]]


class Staff:
    """Handlers, by stream and consumer."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.handlers: dict[tuple[str, str], tuple[Handler, int]] = {  # and how many at once
            ("orders", "billing"): (self.bill, 8),
            ("orders", "search"): (self.index, 8),
            ("payments", "ledger"): (self.book, 4),
            ("payments", "fraud"): (self.index, 4),
            ("emails", "sender"): (self.mail, 4),
            ("clicks", "analytics"): (self.count, 6),
            ("stock", "prices"): (self.index, 2),
        }

    async def workers(self, hg: AsyncHeadgate) -> list[AsyncWorker]:
        """A worker for each. (Nobody serves the VIP desk: its messages wait.)"""
        made = []
        for (stream, name), (handler, concurrency) in self.handlers.items():
            consumer = await (await hg.stream(stream)).consumer(name)
            made.append(
                consumer.worker(handler, concurrency=concurrency, signals=False, grace=2, batch_size=20, timing=0.05)
            )
        return made

    async def bill(self, m: AsyncMessage) -> None:
        """Slow enough that a tenant with a burst waits; a card is declined now and then."""
        await asyncio.sleep(self._chance.uniform(0.05, 0.25))
        if self._chance.random() < 0.03:
            raise ConnectionError(f"payment gateway answered 503 after {self._chance.randint(900, 5000)} ms")
        if m.data["quantity"] == 12 and m.seq % 10 == 0:
            raise ValueError(f"credit limit of {m.data['customer']} exceeded by {self._chance.randint(10, 400)} EUR")

    async def index(self, m: AsyncMessage) -> None:
        """Quick."""
        await asyncio.sleep(0.005)

    async def book(self, m: AsyncMessage) -> None:
        """In the order of each customer: while one fails, those behind it wait."""
        await asyncio.sleep(0.02)
        if m.seq % 97 == 0 and m.attempt < 5:
            raise TimeoutError(f"lock on account {m.data['customer']} not granted within {3000 + m.seq % 7} ms")

    async def mail(self, m: AsyncMessage) -> None:
        """Some addresses never work."""
        await asyncio.sleep(0.03)
        if m.seq % 23 == 0:
            raise ValueError(f'550 mailbox "{m.data["to"]}" unavailable (id {m.seq})')
        if m.seq % 61 == 0:
            raise KeyError(f"template variable 'discount_{m.seq % 5}' is missing")

    async def count(self, m: AsyncMessage) -> None:
        """Falls behind for a part of each day, and catches up."""
        is_noon = asyncio.get_running_loop().time() % DAY < DAY / 3
        await asyncio.sleep(0.4 if is_noon else 0.02)
