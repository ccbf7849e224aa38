"""Presets of sends, receives and settles: lanes, order, limits, leases, dead letters, discards."""

from __future__ import annotations

from .parts import AGAIN, BOTH, DISCARDING, FEW_WORKERS, MAINTENANCE, MORTAL, SMALL_SEGMENTS, STORED
from .preset import Preset, plan

TRAFFIC = [
    Preset("plain", BOTH, {"lanes": 3}, MAINTENANCE | AGAIN | {"discard": 0.5}, ids=0.2),
    Preset("keys", BOTH, {"lane_by": "key"}, MAINTENANCE | AGAIN | {"discard": 0.5}),
    Preset("channels", BOTH, {"lane_by": "channel"}, MAINTENANCE | AGAIN | {"discard": 0.5}),
    # many lanes, so that some are free while others are held
    Preset("many-keys", BOTH, {"lane_by": "key"}, {}, keys=40, keyless=0.0, sizes=(3, 10), batch=2, pace=0.1),
    Preset("many-channels", BOTH, {"lane_by": "channel"}, {}, keys=10, keyless=0.0, sizes=(3, 10), batch=2, pace=0.1),
    Preset("many-lanes", BOTH, {"lanes": 32}, {}, keys=40, sizes=(3, 10), batch=2, pace=0.1),
    # few transactions stay open, so that vacuum may forget who has locked what
    Preset("vacuum", BOTH, {"lanes": 2}, {"vacuum": 1.0}, operators_open=0.0, open=0.05, holds=(0.0, 0.01), share=0.6),
    # some stay open for so long that a seek has to give up
    Preset("held", BOTH, {"lanes": 3}, {"seek": 1.0}, operators_open=0.0, open=0.1, holds=(0.01, 0.01, 6.0), workers=3),
    # workers that send something first, and then settle with a snapshot from before
    Preset(
        "snapshots",
        BOTH,
        {"lanes": 3},
        {"maintain": 1.0},
        operators_open=0.0,
        answers=0.6,
        holds=(0.05,),
        senders=1,
        pace=0.05,
        workers=2,
        open=0.4,
        share=0.0,
        deaf=0.0,
        nack=0.0,
    ),
    # delays, and consumers that see a part of the keys
    Preset(
        "filters",
        (
            plan("all", ack_wait=0.6),
            plan("some", filter=["a.>"], order="key", ack_wait=0.6),
            plan("others", filter=["b.>"]),
        ),
        {"lanes": 2},
        MAINTENANCE | AGAIN,
        families=("a", "b"),
        delays=0.2,
    ),
    Preset(
        "delays",
        BOTH,
        {"lane_by": "channel"},
        MAINTENANCE,
        delays=0.3,
    ),
    # limits of channels and of whole consumers, which change
    Preset(
        "limits",
        (
            plan("capped", ack_wait=0.5, max_concurrency=2),
            plan("paced", order="key", ack_wait=0.5, max_concurrency=3, release_interval=0.005),
        ),
        {"lane_by": "channel"},
        MAINTENANCE | AGAIN | {"set_channel": 2.0, "alter_consumer": 2.0, "pause": 0.5},
        batch=2,
        pace=0.1,
    ),
    Preset(
        "capped",
        (
            plan("capped", ack_wait=0.5, max_concurrency=2),
            plan("paced", order="key", ack_wait=0.5, max_concurrency=3, release_interval=0.02),
        ),
        {"lane_by": "channel"},
        MAINTENANCE,
        batch=2,
        pace=0.1,
        keys=4,
    ),
    Preset(
        "pending",
        (
            plan("free", ack_wait=0.5, max_ack_pending=10),
            plan("ordered", order="key", ack_wait=0.5, max_ack_pending=10),
        ),
        {"lanes": 3},
        MAINTENANCE | {"alter_consumer": 1.0, "pause": 0.5},
    ),
    Preset(
        "leased",
        (
            plan("free", ack_wait=0.6, leased=True, lease_time=1.0),
            plan("ordered", order="key", leased=True, lease_time=1.0),
        ),
        {"lanes": 4},
        MAINTENANCE,
    ),
    Preset(
        "leased-keys",
        (plan("ordered", order="key", ack_wait=0.6, leased=True, lease_time=1.0),),
        {"lane_by": "key", "lanes": 4},
        MAINTENANCE | {"discard": 0.5},
    ),
    # replay and powers over what is parked
    Preset(
        "seeks",
        BOTH,
        {"lanes": 3},
        MAINTENANCE | {"seek": 1.0, "retry_now": 1.0, "replay": 1.0, "discard": 1.0, "pause": 0.3},
        long_nack=0.3,
    ),
    Preset(
        "seeks-keys",
        BOTH,
        {"lane_by": "key"},
        MAINTENANCE | {"seek": 1.0, "retry_now": 1.0, "replay": 1.0, "discard": 1.0},
        long_nack=0.3,
    ),
    Preset("dead", MORTAL, {"lanes": 3}, MAINTENANCE | AGAIN | {"redrive": 2.0, "purge_dead": 0.3}, nack=0.3),
    Preset(
        "dead-channels",
        MORTAL,
        {"lane_by": "channel"},
        MAINTENANCE | AGAIN | {"redrive": 2.0, "purge_dead": 0.3},
        nack=0.3,
    ),
    # small tables that are rewritten all the time
    Preset("rewrites", BOTH, {"lanes": 3}, MAINTENANCE | {"rewrite": 2.0, "seek": 0.3, "discard": 0.5}),
    Preset("rewrites-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE | {"rewrite": 2.0, "replay": 0.5}),
    Preset(
        "rewrites-leased",
        (plan("ordered", order="key", ack_wait=0.6, leased=True, lease_time=1.0),),
        {"lane_by": "key", "lanes": 4},
        MAINTENANCE | {"rewrite": 2.0},
    ),
    # discards of what waits, is in flight or parked; few workers, so that there is something to discard
    Preset("discards", BOTH, {"lanes": 3}, DISCARDING, **FEW_WORKERS),
    Preset("discards-keys", BOTH, {"lane_by": "key"}, DISCARDING, **FEW_WORKERS | {"keys": 30}),
    Preset("discards-channels", MORTAL, {"lane_by": "channel"}, DISCARDING | {"redrive": 1.0}, **FEW_WORKERS),
    Preset("discards-lanes", BOTH, {"lanes": 2}, DISCARDING | {"set_lanes": 1.0}, **FEW_WORKERS),
    Preset("discards-dead", MORTAL, {"lanes": 2}, DISCARDING | {"redrive": 2.0, "seek": 0.7}, **FEW_WORKERS),
    Preset(
        "discards-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        DISCARDING | {"maintain": 6.0, "compact": 3.0, "use_up": 0.5},
        **STORED | FEW_WORKERS,
    ),
    # changing the number of lanes under traffic
    Preset("lanes", BOTH, {"lanes": 2}, MAINTENANCE | AGAIN | {"set_lanes": 1.0, "seek": 0.3}, open=0.25),
]
