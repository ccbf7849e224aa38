"""set_lanes while many write and work at once."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import psycopg
from psycopg import errors

from support.calls import Db, ack, call, column, nack, receive, send, tick
from support.waiting import wait_until

S = "orders"
KEYS = [f"k{i}" for i in range(12)]


def test_under_traffic(db: Db, database_url: str) -> None:
    """4 -> 16 -> 3 lanes, while writers keep transactions open across the change and workers fail now and then."""
    call(db, "create_stream", S, lanes=4)
    call(db, "create_consumer", S, "ordered", order="key", ack_wait="300 milliseconds")
    call(db, "create_consumer", S, "plain")
    stop = threading.Event()
    abandoned = threading.Event()
    lock = threading.Lock()
    sent: dict[str, list[str]] = defaultdict(list)  # of each key, in the order of its transactions
    key_locks = {key: threading.Lock() for key in KEYS}
    handled: dict[str, list[tuple[str, str]]] = {"ordered": [], "plain": []}
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        """Each transaction owns its key, so that its messages have an order: it sends some, stays open, sends more."""
        rng = random.Random(seed)
        number = 0
        with psycopg.connect(database_url) as own:
            while not stop.is_set():
                key = rng.choice(KEYS)
                with key_locks[key]:
                    mine = []
                    for pause in rng.choice([[0.0]] * 30 + [[0.0, 0.01], [0.0, 0.3, 0.0], [0.0, 2.0, 0.01]]):
                        time.sleep(pause)
                        data = f"{seed}.{number}"
                        number += 1
                        send(own, S, data, key=key)
                        mine.append(data)
                    if rng.random() < 0.1:
                        own.rollback()
                    else:
                        own.commit()
                        sent[key] += mine

    def work(consumer: str, seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(database_url, autocommit=True) as own:
            while not (stop.is_set() and complete(consumer)) and not abandoned.is_set():
                for m in receive(own, S, consumer, rng.choice([1, 5, 50]), f"w{seed}"):
                    if consumer == "ordered" and rng.random() < 0.1:
                        nack(own, S, consumer, [m], rng.choice(["0", "20 milliseconds"]))
                        break
                    with lock:
                        if ack(own, S, consumer, [m]) == (1, 0):
                            handled[consumer].append((m.key or "", m.data))

    def complete(consumer: str) -> bool:
        return not writers_alive() and len(handled[consumer]) >= sum(map(len, sent.values()))

    def guarded(what: object, *arguments: object) -> None:
        try:
            what(*arguments)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)
            stop.set()
            raise

    def writers_alive() -> bool:
        return any(w.is_alive() for w in writers)

    writers = [threading.Thread(target=guarded, args=(write, i)) for i in range(6)]
    workers = [
        threading.Thread(target=guarded, args=(work, c, i)) for c, n in (("ordered", 3), ("plain", 2)) for i in range(n)
    ]
    for t in (*writers, *workers):
        t.start()

    def change(n: int) -> bool:
        try:
            call(db, "set_lanes", S, n)
        except errors.LockNotAvailable:
            db.execute("select * from headgate.maintain()")
            return False
        return True

    def more_is_handled() -> None:
        enough = {c: len(handled[c]) + 40 for c in ("ordered", "plain")}
        wait_until(lambda: failures or all(len(handled[c]) >= n for c, n in enough.items()), timeout=60)

    more_is_handled()
    for n in (16, 3):
        wait_until(lambda n=n: change(n))  # type: ignore[misc]
        more_is_handled()
    stop.set()
    given_up_at = time.monotonic() + 30
    for t in (*writers, *workers):
        t.join(max(0, given_up_at - time.monotonic()))
    abandoned.set()  # whoever still waits for a message: the comparison tells for which one
    for t in (*writers, *workers):
        t.join(30)
        assert not t.is_alive()
    assert not failures
    for consumer in ("ordered", "plain"):
        assert sorted(d for _, d in handled[consumer]) == sorted(d for of_key in sent.values() for d in of_key)
    for key in KEYS:
        assert [d for k, d in handled["ordered"] if k == key] == sent[key]
    for _ in range(4):
        tick(db, S)
        db.execute("select * from headgate.maintain()")
    lanes = "select distinct lane from headgate.cursor k join headgate.consumer c on c.id = k.consumer order by lane"
    assert column(db, lanes) == [20, 21, 22]  # of both consumers
