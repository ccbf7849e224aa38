"""What the shop's customers do: more and less of it, as a day goes by in three minutes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime

from ..aio import AsyncHeadgate
from ..types import Outgoing
from .shop import NOISY, PRODUCTS, STOCK, TENANTS, execute

DAY = 180.0  # seconds
STEP = 0.25  # seconds between sends
BURST = 60.0  # seconds between the bursts of the noisy tenant

Clock = Callable[[], float]


def daylight(second: float) -> float:
    """How busy it is, from 0.15 in the night to 1."""
    return 0.575 - 0.425 * math.cos(2 * math.pi * second / DAY)


class Customers:
    """They order, pay, click, and are sent mail. `rate` scales all of it."""

    def __init__(self, hg: AsyncHeadgate, rate: float, chance: random.Random) -> None:
        self._hg = hg
        self._rate = rate
        self._chance = chance
        self._orders = int(datetime.now(UTC).timestamp()) % 1_000_000
        self._owed = dict.fromkeys(("orders", "clicks"), 0.0)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        burst_at = began + BURST / 4
        while True:
            now = loop.time()
            busy = daylight(now - began) * self._rate
            await self._order(self._due("orders", 14 * busy), None)
            await self._click(self._due("clicks", 40 * busy))
            if now >= burst_at:
                burst_at = now + BURST
                await self._order(int(250 * self._rate), NOISY)
            await asyncio.sleep(STEP)

    async def sell(self) -> None:
        """Changes the shop's table, whose changes are a stream, until it is cancelled."""
        while True:
            product = self._chance.choice(PRODUCTS)
            await execute(
                self._hg,
                f"update {STOCK}.stock set price = round((price * %s)::numeric, 2), "  # noqa: S608 - a constant
                "on_shelf = case when on_shelf <= 3 then 100 else on_shelf - %s end where product = %s",
                self._chance.choice((0.95, 1, 1, 1.05)), self._chance.randint(1, 3), product,
            )  # fmt: skip
            await asyncio.sleep(1 / self._rate)

    def _due(self, what: str, per_second: float) -> int:
        self._owed[what] += per_second * STEP
        whole = int(self._owed[what])
        self._owed[what] -= whole
        return whole

    async def _order(self, n: int, tenant: str | None) -> None:
        orders, payments, emails = [], [], []
        for _ in range(n):
            self._orders += 1
            number = f"ord_{self._orders}"
            who = tenant or self._chance.choice((*TENANTS, NOISY, NOISY))
            customer = f"cus_{self._chance.randint(1, 40)}"
            quantity = self._chance.choice((1, 1, 2, 3, 12))
            size = "large" if quantity > 10 else "small"
            order = {
                "order": number, "tenant": who, "customer": customer, "quantity": quantity,
                "lines": [{"product": self._chance.choice(PRODUCTS), "quantity": quantity}],
                "total": round(quantity * self._chance.uniform(5, 80), 2),
            }  # fmt: skip
            orders.append(Outgoing(order, key=f"orders.{who}.{size}.{number}", channel=who, id=number))
            payment = {"order": number, "customer": customer, "amount": order["total"], "currency": "EUR"}
            payments.append(Outgoing(payment, key=f"payments.{customer}"))
            if self._chance.random() < 0.4:
                mail = {"to": f"{customer}@example.com", "template": "order-confirmed", "order": number}
                late = 20 if self._chance.random() < 0.05 else None
                emails.append(Outgoing(mail, key=f"emails.{customer}", delay=late))
        for stream, messages in (("orders", orders), ("payments", payments), ("emails", emails)):
            if messages:
                await (await self._hg.stream(stream)).send_batch(messages)

    async def _click(self, n: int) -> None:
        if n:
            pages = [f"/products/{self._chance.choice(PRODUCTS)}" for _ in range(n)]
            visits = [Outgoing({"page": p, "visitor": self._chance.randint(1, 9999)}, key="clicks.web") for p in pages]
            await (await self._hg.stream("clicks")).send_batch(visits)
