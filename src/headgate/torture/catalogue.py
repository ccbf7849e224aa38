"""The presets that there are: each is about one part of the engine, or one kind of fault."""

from __future__ import annotations

from typing import Any

from .presets import LONG, SHORT, Preset, plan

MAINTENANCE = {"maintain": 3.0, "tick": 2.0}
AGAIN = {"replay": 1.0, "retry_now": 0.5}
THINNING = {"maintain": 2.0, "thin": 2.0, "use_up": 0.5}
SMALL_SEGMENTS = {"segment_rows": 1000, "segment_age": "200 ms", "compact_every": "300 ms"}
# Few sessions with few messages, so that segments are done for soon, but for some parked messages.
QUICK: dict[str, Any] = {
    "batch": 20,
    "pace": 0.1,
    "sizes": (30, 100),
    "rest": 0.01,
    "operators_open": 0.0,
    "senders": 1,
    "workers": 2,
    "open": 0.0,
    "share": 0.0,
    "deaf": 0.0,
    "nack": 0.4,
    "long_nack": 1.0,
    "longest_nack": 4.0,
    "holds": (0.03,),
}
QUICK_SEGMENTS = {"lanes": 2, "retain": "until_acked", "segment_rows": 1000, "segment_age": "100 ms"}
# Segments that everybody is done with after a while, but for a few parked messages.
STORED: dict[str, Any] = {"batch": 12, "maintainers": 1, "open": 0.15, "long_nack": 0.6, "nack": 0.08}
READ: dict[str, Any] = {"readers": 2, "workers": 3, "open": 0.3}
# Processes of their own do all, or most, of the work.
KILLING = {"kill": 1.0, "stop": 1.0}
APART: dict[str, Any] = {"faults": KILLING, "senders": 0, "workers": 0, "operators": 0, "fault_every": 0.5}
DISCARDING = MAINTENANCE | {"discard": 4.0}
FEW_WORKERS: dict[str, Any] = {"workers": 3, "batch": 12, "lookers": 1, "long_nack": 0.3, "delays": 0.1}
BOTH = (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8))
MORTAL = (plan("free", ack_wait=0.4, max_deliver=2), plan("ordered", order="key", ack_wait=0.5, max_deliver=2))

_ALL = [
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
    # storage: what everybody has acked is removed, a few parked messages are kept elsewhere
    Preset(
        "storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        AGAIN | {"maintain": 6.0, "compact": 3.0, "seek": 0.7, "alter_stream": 0.3, "discard": 0.5},
        **STORED,
    ),
    Preset(
        "storage-lanes",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        AGAIN | {"maintain": 6.0, "compact": 3.0, "seek": 0.7, "set_lanes": 0.7},
        **STORED,
    ),
    Preset(
        "storage-channels",
        BOTH,
        {"lane_by": "channel", "retain": "until_acked"} | SMALL_SEGMENTS,
        AGAIN | {"maintain": 6.0, "compact": 3.0, "seek": 0.7},
        **STORED,
    ),
    Preset(
        "compaction",
        (plan("free", ack_wait=0.6),),
        QUICK_SEGMENTS,
        {"compact_late": 1.0, "go_back_slowly": 1.0, "replay": 2.0, "discard": 0.2},
        **QUICK,
    ),
    Preset(
        "compaction-lanes",
        (plan("free", ack_wait=0.6),),
        QUICK_SEGMENTS,
        {"go_back_elsewhere": 1.0, "go_back": 0.2, "set_lanes": 0.2},
        **QUICK,
    ),
    Preset(
        "aging",
        BOTH,
        {"lanes": 2, "retain_up_to": 2.0} | SMALL_SEGMENTS,
        AGAIN | {"maintain": 3.0, "compact": 1.0, "seek": 0.3},
        batch=12,
        maintainers=1,
        open=0.15,
    ),
    # upserts: a key has one message, its newest
    Preset(
        "upsert",
        (plan("newest", ack_wait=0.5),),
        {"lanes": 2, "one_message_per_key": True},
        MAINTENANCE | AGAIN | {"discard": 0.5},
        ids=0.6,
        keyless=0.0,
    ),
    Preset(
        "upsert-dead",
        (plan("newest", ack_wait=0.4, max_deliver=2),),
        {"lanes": 2, "one_message_per_key": True, "retain": "until_acked"} | SMALL_SEGMENTS,
        AGAIN | {"maintain": 6.0, "compact": 2.0, "redrive": 2.0, "seek": 0.3},
        keyless=0.0,
        nack=0.4,
        maintainers=1,
        senders=2,
        pace=0.05,
        keys=3,
        open=0.15,
        holds=LONG,
    ),
    # segments go while older versions are dead letters
    Preset(
        "upsert-redriven",
        (plan("newest", ack_wait=0.4, max_deliver=1),),
        {"lanes": 2, "one_message_per_key": True} | QUICK_SEGMENTS | {"compact_every": "100 ms"},
        {"maintain": 6.0, "redrive": 1.0, "replay": 1.0},
        **QUICK | {"batch": 2, "keyless": 0.0, "keys": 3, "long_nack": 0.0, "maintainers": 1},
    ),
    # readers with marks, while ticks are thinned out
    Preset("marks", BOTH, {"lanes": 3}, THINNING, **READ),
    Preset("marks-lanes", BOTH, {"lanes": 2}, THINNING | {"set_lanes": 1.0}, **READ),
    Preset("marks-channels", BOTH, {"lane_by": "channel"}, THINNING, **READ),
    Preset(
        "marks-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        THINNING | {"maintain": 6.0, "compact": 3.0, "seek": 0.5},
        **(STORED | READ),
    ),
    Preset(
        "marks-aging",
        BOTH,
        {"lanes": 2, "retain_up_to": 1.0} | SMALL_SEGMENTS,
        THINNING | {"maintain": 3.0},
        **(STORED | READ),
    ),
    # what people are told of floors, counts, states and losses
    Preset("looks", BOTH, {"lanes": 3}, MAINTENANCE | {"discard": 1.0}, lookers=2, delays=0.1, long_nack=0.3),
    Preset("looks-keys", BOTH, {"lane_by": "key"}, MAINTENANCE | {"seek": 0.3}, lookers=2, delays=0.1, long_nack=0.3),
    Preset("looks-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE, lookers=2, delays=0.1, long_nack=0.3),
    Preset(
        "looks-dead",
        MORTAL,
        {"lanes": 2},
        MAINTENANCE | AGAIN | {"redrive": 1.0, "set_lanes": 0.5},
        lookers=2,
        nack=0.3,
    ),
    Preset(
        "looks-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "discard": 1.0, "use_up": 0.5},
        **(STORED | {"lookers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "losses",
        BOTH,
        {"lanes": 2, "retain_up_to": 1.0} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 1.0, "use_up": 0.5},
        **(STORED | {"lookers": 1, "workers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "losses-channels",
        BOTH,
        {"lane_by": "channel", "max_storage": 1_048_576} | SMALL_SEGMENTS,
        {"maintain": 6.0},
        **(STORED | {"lookers": 1, "workers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "full",
        BOTH,
        {"lanes": 2, "retain": "until_acked", "max_storage": 1_048_576} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 2.0},
        **(STORED | {"lookers": 1, "operators_open": 0.0, "batch": 40}),
    ),
    # archives: what they do not have is not removed
    Preset(
        "archives",
        (plan("free", ack_wait=0.4),),
        {"lanes": 2, "retain": "until_archived"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 2.0, "thin": 1.0, "use_up": 0.3},
        **(
            STORED | {"archivers": 2, "operators_open": 0.0, "open": 0.05, "nack": 0.02, "long_nack": 0.0, "deaf": 0.01}
        ),
    ),
    # consumers that are dropped and created again
    Preset("recreated", BOTH, {"lanes": 3}, MAINTENANCE | {"recreate": 1.0}, lookers=1),
    Preset("recreated-keys", BOTH, {"lane_by": "key"}, MAINTENANCE | {"recreate": 1.0}, lookers=1),
    Preset(
        "recreated-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "recreate": 0.7},
        **(STORED | {"operators_open": 0.0}),
    ),
    # streams that are
    Preset("recreated-stream", BOTH, {"lanes": 3}, MAINTENANCE | {"recreate_stream": 0.6}, open=0.2, holds=SHORT),
    Preset(
        "recreated-stream-keys", BOTH, {"lane_by": "key"}, {"recreate_stream": 0.3, "tick": 1.0}, open=0.2, holds=SHORT
    ),
    # filters that are widened for a while
    Preset(
        "refiltered",
        (plan("all", ack_wait=0.6), plan("some", filter=["a.>"], order="key", ack_wait=0.6)),
        {"lanes": 2},
        MAINTENANCE | {"alter_filter": 2.0},
        families=("a", "b", "c"),
        keys=3,
        widened=("b",),
        lookers=1,
    ),
    # transactions that are prepared, and ended by others
    Preset("prepared", BOTH, {"lanes": 3}, MAINTENANCE, prepared=0.4, readers=1, ids=0.2),
    Preset("prepared-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE | {"seek": 0.3}, prepared=0.4),
    Preset(
        "prepared-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "use_up": 0.3},
        **(STORED | {"prepared": 0.5, "operators_open": 0.0, "open": 0.3}),
    ),
    # calls that are cancelled in the middle
    Preset("cancels", BOTH, {"lanes": 3}, MAINTENANCE | {"cancel": 20.0, "seek": 0.3}, operators=2),
    Preset("cancels-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE | {"cancel": 20.0, "seek": 0.3}, operators=2),
    # sessions, server and network that fail
    Preset("terminated", BOTH, {"lanes": 3}, MAINTENANCE, faults={"terminate": 1.0}, ids=0.3),
    Preset("frozen", BOTH, {"lane_by": "channel"}, MAINTENANCE, faults={"freeze": 1.0}, ids=0.3),
    Preset("crowded", BOTH, {"lanes": 3}, MAINTENANCE, faults={"crowd": 1.0}, ids=0.3),
    Preset(
        "crashes",
        BOTH,
        {"lane_by": "key"},
        MAINTENANCE,
        faults={"crash": 1.0, "restart": 0.3},
        fault_every=1.0,
        ids=0.3,
    ),
    Preset(
        "crashes-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "seek": 0.7, "set_lanes": 0.3},
        faults={"crash": 1.0, "terminate": 3.0},
        ids=0.3,
        **STORED,
    ),
    Preset("network", BOTH, {"lanes": 3}, MAINTENANCE, faults={"cut": 2.0, "slow": 1.0}, ids=0.3),
    Preset(
        "network-upsert",
        (plan("newest", ack_wait=0.5),),
        {"lanes": 2, "one_message_per_key": True},
        MAINTENANCE,
        faults={"cut": 1.0, "terminate": 1.0},
        ids=0.6,
        keyless=0.0,
    ),
    Preset("full-disk", BOTH, {"lanes": 3}, MAINTENANCE, faults={"fill": 1.0}, fault_every=1.0, ids=0.3),
    Preset(
        "upgrades",
        BOTH,
        {"lane_by": "channel"},
        MAINTENANCE,
        faults={"upgrade": 1.0},
        fault_every=1.0,
        ids=0.3,
        open=0.2,
        holds=SHORT,
    ),
    Preset("jumps", BOTH, {"lanes": 3}, MAINTENANCE, faults={"jump": 1.0}, delays=0.2),
    Preset(
        "upgrades-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "seek": 0.5},
        faults={"upgrade": 1.0},
        fault_every=1.0,
        **STORED | {"holds": SHORT},
    ),
    Preset("failover", BOTH, {"lanes": 3}, MAINTENANCE, faults={"fail_over": 1.0}, fault_every=1.5, ids=0.3),
    Preset("failover-late", BOTH, {"lanes": 3}, MAINTENANCE, faults={"fail_over_late": 1.0}, fault_every=1.5, ids=0.3),
    Preset("dump", BOTH, {"lane_by": "key"}, MAINTENANCE, faults={"dump": 1.0}, fault_every=1.5, ids=0.3),
    # batches that are staged and then sent, exactly once
    Preset("staged", BOTH, {"lanes": 3}, MAINTENANCE | {"set_lanes": 0.2}, staged=0.3),
    Preset("staged-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE, staged=0.3, faults={"terminate": 1.0}),
    Preset("staged-crashes", BOTH, {"lanes": 3}, MAINTENANCE, staged=0.3, faults={"crash": 1.0}, fault_every=1.0),
    # processes of their own, with the SDK, its worker, and over HTTP
    Preset("sdk", BOTH, {"lanes": 3}, hands={"sdk": 3, "loop": 1}, powers=0.04, **APART),
    Preset(
        "http",
        BOTH,
        {"lanes": 3},
        hands={"http": 4},
        powers=0.04,
        **APART | {"faults": KILLING | {"kill_server": 0.5}},
    ),
    Preset(
        "mixed",
        BOTH,
        {"lane_by": "channel"},
        MAINTENANCE,
        hands={"sdk": 1, "loop": 1, "http": 2},
        powers=0.04,
        faults=KILLING | {"kill_server": 0.3, "terminate": 0.5},
        fault_every=0.5,
        senders=1,
        workers=2,
        pace=0.05,
    ),
    Preset(
        "mixed-crashes",
        BOTH,
        {"lanes": 3},
        MAINTENANCE,
        hands={"sdk": 2, "loop": 1, "http": 1},
        faults=KILLING | {"kill_server": 0.3, "crash": 1.0},
        fault_every=0.5,
        senders=1,
        workers=1,
        pace=0.05,
    ),
    # a caller who says that it is alone in its transaction, and is not
    Preset("misuse", BOTH, {"lanes": 3}, MAINTENANCE, misuse=0.8, answers=0.4, open=0.7, pace=0.03, holds=LONG),
]
PRESETS: dict[str, Preset] = {p.name: p for p in _ALL}
