"""The shop's streams and consumers, and the table of its stock."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from ..aio import AsyncHeadgate
from ..errors import Error, SourceNotFound
from ..webhooks import new_secret

log = logging.getLogger("headgate.demo")

HOUR = 3600.0
TENANTS = ("acorn", "birch", "cedar", "dogwood", "elm", "fir")
NOISY = "megastore"  # sends more than all others together
PRODUCTS = ("apron", "basket", "candle", "dish", "easel", "fork", "globe", "hammer")
STREAMS = ("orders", "payments", "emails", "clicks", "stock")
STOCK = "headgate_demo"  # the schema of the shop's own table

INSERT = f"insert into {STOCK}.stock values (%s, 100, 9.95) on conflict do nothing"  # noqa: S608 - a constant
_TABLES = (
    f"create schema if not exists {STOCK}",
    f"create table if not exists {STOCK}.stock ("
    "product text primary key, on_shelf int not null, price numeric(8, 2) not null)",
)


async def open_shop(hg: AsyncHeadgate, receiver_url: str) -> None:
    """Makes what is not there yet. With what an earlier demo left it goes on."""
    kept: dict[str, Any] = {"retain_up_to": HOUR, "max_storage": 256 * 1024 * 1024}
    orders = await hg.stream("orders", create=True, lane_by="channel", **kept)
    payments = await hg.stream("payments", create=True, lanes=8, **kept)
    emails = await hg.stream("emails", create=True, lanes=4, **kept)
    clicks = await hg.stream("clicks", create=True, lanes=4, retain="until_acked", **kept)
    await hg.stream("stock", create=True, lanes=4, **kept)
    # two orders of a tenant at once: a noisy one waits for itself, not the others for it
    await orders.consumer("billing", create=True, max_deliver=4, backoff=[2, 5, 15], max_concurrency=2)
    await orders.consumer("search", create=True)
    await orders.consumer("vip-desk", create=True, filter="orders.*.large.>")
    await payments.consumer("ledger", create=True, order="key", max_deliver=8, backoff=[3, 6, 10])
    await payments.consumer("fraud", create=True, leased=True)
    await emails.consumer("sender", create=True, max_deliver=3, backoff=[1, 3])
    await clicks.consumer("analytics", create=True)
    await (await hg.stream("stock")).consumer("prices", create=True)
    shipped = await orders.consumer("shipping", create=True, max_deliver=5, backoff=[2, 4, 8], push={
        "url": receiver_url, "secret": new_secret(), "concurrency": 4,
    }) if "shipping" not in await orders.consumers() else await orders.consumer("shipping")  # fmt: skip
    await shipped.alter(push={"url": receiver_url})  # an earlier demo had another port
    await shipped.resume()  # and paused it as it ended
    await _fill_shelves(hg)


async def _fill_shelves(hg: AsyncHeadgate) -> None:
    """The table, and the source that sends its changes; without logical decoding in that PostgreSQL, no source."""
    for statement in _TABLES:
        await execute(hg, statement)
    for product in PRODUCTS:
        await execute(hg, INSERT, product)
    try:
        await hg.sources.add_postgres("stock", "stock", url=hg.url, tables=[f"{STOCK}.stock"], backfill=True,
                                      exist_ok=True)  # fmt: skip
    except Error as error:
        log.warning("the shop's table is not read: %s", error.message)


async def close_shop(hg: AsyncHeadgate) -> None:
    """At the end of the demo, where its streams stay: nobody pushes to a receiver that is gone, or keeps a slot."""
    try:
        await (await (await hg.stream("orders")).consumer("shipping")).pause()
        await hg.sources.remove_postgres("stock")
    except Error as error:
        log.warning("the shop is not closed: %s", error.message)


async def remove_shop(hg: AsyncHeadgate) -> list[str]:
    """Removes what demos have left; the names of the streams that were there."""
    with contextlib.suppress(SourceNotFound):
        await hg.sources.remove_postgres("stock")
    there = [name for name in STREAMS if name in await hg.streams()]
    for name in there:
        await (await hg.stream(name)).drop()
    await execute(hg, f"drop schema if exists {STOCK} cascade")
    return there


async def execute(hg: AsyncHeadgate, statement: str, *parameters: object) -> None:
    """A statement of the shop's own, which returns nothing."""
    async with (await hg._own_pool.ready()).connection() as connection:
        await connection.execute(statement.encode(), parameters)
