"""A database with something of everything in it; whatever users may write is an attempt to run a script."""

from __future__ import annotations

import headgate
from headgate import Headgate, Outgoing
from headgate.webhooks import new_secret

EVIL = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"&"""
KEY = f"orders.{EVIL}"
HUGE = 9007199254740993  # no double


def fill(hg: Headgate) -> None:
    """Makes it."""
    orders = hg.stream("orders", create=True, lane_by="channel")
    billing = orders.consumer("billing", create=True, max_deliver=2)
    orders.consumer("idle", create=True)
    orders.consumer(
        "shipping", create=True, push={"url": "http://127.0.0.1:9/hook", "secret": new_secret()},
    )  # fmt: skip
    orders.send_batch(
        Outgoing({"n": n, "huge": HUGE, "text": EVIL}, key=KEY, channel=f"{EVIL}{n % 3}", headers={"note": EVIL})
        for n in range(30)
    )
    got = receive(billing, 30)
    for attempt in range(2):  # the second one makes dead letters
        for n, m in enumerate(got[:3] if attempt == 0 else receive(billing, 3)):
            m.nack(delay=0, error=f'Error: timed out after {n * 7} ms for "cus_{n}" {EVIL}')
    got[3].nack(delay=3600, error=EVIL)
    billing.ack(got[4:])
    orders.send_batch(Outgoing({"n": n, "text": EVIL}, key=KEY, channel=EVIL) for n in range(5))

    ledger_stream = hg.stream("payments", create=True, lanes=1)
    ledger = ledger_stream.consumer("ledger", create=True, order="key")
    ledger_stream.send_batch([Outgoing({"pay": n}, key="same") for n in range(3)])
    receive(ledger, 1)[0].nack(delay=3600, error="locked")
    hg.stream("bare", create=True)
    hg.sources.create("hooks", "payments", scheme="none")


def receive(consumer: headgate.Consumer, n: int) -> list[headgate.Message]:
    """That many, whichever call they come with."""
    found: list[headgate.Message] = []
    for _ in range(100):
        found += consumer.receive(n - len(found), wait=1)
        if len(found) >= n:
            break
    return found
