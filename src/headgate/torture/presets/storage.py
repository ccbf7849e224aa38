"""Presets of what is stored and looked at: segments, upserts, readers, counts, archives, what is made again."""

from __future__ import annotations

from .parts import AGAIN, BOTH, MAINTENANCE, MORTAL, QUICK, QUICK_SEGMENTS, READ, SMALL_SEGMENTS, STORED, THINNING
from .preset import LONG, SHORT, Preset, plan

STORAGE = [
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
    Preset("looks", BOTH, {"lanes": 3}, MAINTENANCE | {"discard": 1.0}, observers=2, delays=0.1, long_nack=0.3),
    Preset("looks-keys", BOTH, {"lane_by": "key"}, MAINTENANCE | {"seek": 0.3}, observers=2, delays=0.1, long_nack=0.3),
    Preset("looks-channels", BOTH, {"lane_by": "channel"}, MAINTENANCE, observers=2, delays=0.1, long_nack=0.3),
    Preset(
        "looks-dead",
        MORTAL,
        {"lanes": 2},
        MAINTENANCE | AGAIN | {"redrive": 1.0, "set_lanes": 0.5},
        observers=2,
        nack=0.3,
    ),
    Preset(
        "looks-storage",
        BOTH,
        {"lanes": 2, "retain": "until_acked"} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 3.0, "discard": 1.0, "use_up": 0.5},
        **(STORED | {"observers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "losses",
        BOTH,
        {"lanes": 2, "retain_up_to": 1.0} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 1.0, "use_up": 0.5},
        **(STORED | {"observers": 1, "workers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "losses-channels",
        BOTH,
        {"lane_by": "channel", "max_storage": 1_048_576} | SMALL_SEGMENTS,
        {"maintain": 6.0},
        **(STORED | {"observers": 1, "workers": 2, "operators_open": 0.0}),
    ),
    Preset(
        "full",
        BOTH,
        {"lanes": 2, "retain": "until_acked", "max_storage": 1_048_576} | SMALL_SEGMENTS,
        {"maintain": 6.0, "compact": 2.0},
        **(STORED | {"observers": 1, "operators_open": 0.0, "batch": 40}),
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
    Preset("recreated", BOTH, {"lanes": 3}, MAINTENANCE | {"recreate": 1.0}, observers=1),
    Preset("recreated-keys", BOTH, {"lane_by": "key"}, MAINTENANCE | {"recreate": 1.0}, observers=1),
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
        observers=1,
    ),
]
