"""A shop that stands still, so that what is seen of it is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate import Outgoing
from support.servers import Replica, replica

pytest.importorskip("textual", reason="pip install 'headgate[observe]'")


@pytest.fixture
def shop(hg: headgate.Headgate) -> headgate.Headgate:
    """Something of everything: dead letters, parked and blocked messages, tenants, a paused consumer, nobody's."""
    orders = hg.stream("orders", create=True, lane_by="channel")
    billing = orders.consumer("billing", create=True, max_deliver=1, max_concurrency=2)
    orders.consumer("paused", create=True).pause()
    orders.send_batch(
        Outgoing({"order": n, "total": 9.5}, key=f"{who}.{n}", channel=who)
        for n, who in enumerate(("acorn", "birch", "megastore", "megastore", "megastore", "megastore"))
    )
    for m in sorted(take(billing, 3), key=lambda m: m.seq):
        m.nack(error=f"card of cus_{m.seq} declined")
    payments = hg.stream("payments", create=True, lanes=1)
    ledger = payments.consumer("ledger", create=True, order="key")
    payments.send_batch([Outgoing({"pay": n}, key="cus_1") for n in range(3)])
    take(ledger, 1)[0].nack(delay=3600, error="account is locked")
    fine = hg.stream("clicks", create=True).consumer("analytics", create=True)
    hg.stream("clicks").send({"page": "/"})
    fine.ack(take(fine, 1))
    hg.sources.create("hooks", "payments", scheme="none")
    return hg


def take(consumer: headgate.Consumer, n: int) -> list[headgate.Message]:
    """That many, whichever call they come with."""
    found: list[headgate.Message] = []
    for _ in range(100):
        found += consumer.receive(n - len(found), wait=1)
        if len(found) >= n:
            break
    assert len(found) == n
    return found


@pytest.fixture
def server(shop: headgate.Headgate, database_url: str, tmp_path: Path) -> Iterator[Replica]:
    """A server in front of it."""
    with replica(database_url, tmp_path, "push=off") as found:
        yield found


@pytest.fixture
def remote(server: Replica) -> Iterator[headgate.Headgate]:
    """The same over HTTP."""
    with headgate.connect(server.url, token=server.token) as found:
        yield found
