"""Lanes by channel and by key: what fairness, idle lanes, many active ones and order by key cost."""

from __future__ import annotations

from dataclasses import replace

from . import backlog
from .bench import Bench
from .contenders import LaneSetup, Read
from .results import Result, compare

_WORKERS = 4
_BATCH = 100
_CAP = 5
_CHANNELS_TARGET, _CAPPED_TARGET = 0.35, 0.18
_KEYS_EACH, _KEYS_TARGET = 20, 0.5  # of a channel; of the speed without order
_IDLE_TARGET = 0.85
_BUSY = ((1, 1), (10, _WORKERS))  # busy channels, workers: one lane is read by one worker at a time
_FEW_CHANNELS = 10
_ACTIVE_BATCH = 10
_ACTIVE_TARGET = 4.0
_GROUPED: dict[Read, float | None] = {"read_grouped": 2.0, "read_grouped_head": None}


def channels(bench: Bench) -> list[Result]:
    """The speed when each of many channels gives its share of a batch, over that of a plain consumer."""
    n = bench.plan.channels
    queues = {
        "fair": bench.queue("headgate", lanes=LaneSetup("channel", n)),
        "capped": bench.queue("headgate", lanes=LaneSetup("channel", n, max_concurrency=_CAP)),
        "ordered": bench.queue("headgate", lanes=LaneSetup("channel", n, keys=_KEYS_EACH)),
        "plain": bench.queue("headgate"),
    }
    with bench.made(queues):
        found = bench.rounds(queues, bench.consume, _BATCH, _WORKERS)
    results = []
    for name, cap, target in (("fair", "none", _CHANNELS_TARGET), ("capped", _CAP, _CAPPED_TARGET)):
        params: dict[str, int | str] = {"channels": n, "max_concurrency": cap, "batch": _BATCH, "workers": _WORKERS}
        figures = {"headgate": found[name], "baseline": found["plain"]}
        results.append(compare("channels", params, figures, unit="msg/s", against="baseline", target=target))
    figures = {"headgate": found["ordered"], "baseline": found["fair"]}
    params = {"channels": n, "keys": n * _KEYS_EACH, "order": "key", "batch": _BATCH, "workers": _WORKERS}
    results.append(compare("channels", params, figures, unit="msg/s", against="baseline", target=_KEYS_TARGET))
    return results


def idle_lanes(bench: Bench) -> list[Result]:
    """The speed of busy channels beside idle ones, over that without these.

    The idle ones have only just become so. That is the hard case: maintenance forgets them after a minute.
    """
    results = []
    idle = bench.queue("headgate", lanes=LaneSetup("channel", bench.plan.idle_lanes))
    alone = bench.queue("headgate", spare=True, lanes=LaneSetup("channel", bench.plan.idle_lanes))
    with bench.made({"headgate": idle, "baseline": alone}) as made:
        bench.fill(idle, bench.plan.idle_lanes)
        bench.drain(idle)
        for busy, workers in _BUSY:
            queues = {name: replace(queue, lanes=LaneSetup("channel", busy)) for name, queue in made.items()}
            for queue in queues.values():
                backlog.tidy(queue)
            found = bench.rounds(queues, bench.consume, _BATCH, workers)
            for queue in queues.values():
                bench.drain(queue)
            params: dict[str, int | str] = {
                "idle": bench.plan.idle_lanes, "busy": busy, "batch": _BATCH, "workers": workers
            }  # fmt: skip
            results.append(compare("idle", params, found, unit="msg/s", against="baseline", target=_IDLE_TARGET))
    return results


def active_channels(bench: Bench) -> list[Result]:
    """How long a receive takes when many channels have work, over that with few."""
    results = []
    n = bench.plan.active_channels
    for workers in (1, _WORKERS):
        many = bench.queue("headgate", lanes=LaneSetup("channel", n))
        few = bench.queue("headgate", lanes=LaneSetup("channel", _FEW_CHANNELS))
        with bench.made({"headgate": many, "baseline": few}) as queues:
            found = bench.rounds(queues, bench.receive_time, _ACTIVE_BATCH, workers)
        params: dict[str, int | str] = {"channels": n, "batch": _ACTIVE_BATCH, "workers": workers}
        results.append(
            compare("active", params, found, unit="ms", against="baseline", target=_ACTIVE_TARGET,
                    target_is="ratio at most")
        )  # fmt: skip
    return results


def key_lanes(bench: Bench) -> list[Result]:
    """Messages a second in order of their keys, beside pgmq's reads in order of groups.

    pgmq has two: `read_grouped` fills a batch from as few groups as it can, `read_grouped_head` takes one message of
    each.
    """
    lanes = LaneSetup("key", bench.plan.keys)
    queues = {"headgate": bench.queue("headgate", lanes=lanes)}
    if bench.server.pgmq_url:
        queues |= {read: bench.queue("pgmq_sql", lanes=lanes, read=read) for read in _GROUPED}
    with bench.made(queues):
        found = bench.rounds(queues, bench.consume, _BATCH, _WORKERS)
    results = []
    for read, target in _GROUPED.items():
        figures = {"headgate": found["headgate"]} | ({"pgmq_sql": found[read]} if read in found else {})
        params: dict[str, int | str] = {"keys": bench.plan.keys, "read": read, "batch": _BATCH, "workers": _WORKERS}
        results.append(compare("keys", params, figures, unit="msg/s", against="pgmq", target=target))
    return results
