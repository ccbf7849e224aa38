"""Presets with trouble: what is prepared or cancelled, faults, staging, processes that are killed."""

from __future__ import annotations

from .parts import APART, BOTH, KILLING, MAINTENANCE, SMALL_SEGMENTS, STORED
from .preset import LONG, SHORT, Preset, plan

TROUBLE = [
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
    Preset("sdk", BOTH, {"lanes": 3}, clients={"sdk": 3, "loop": 1}, powers=0.04, **APART),
    Preset(
        "http",
        BOTH,
        {"lanes": 3},
        clients={"http": 4},
        powers=0.04,
        **APART | {"faults": KILLING | {"kill_server": 0.5}},
    ),
    Preset(
        "mixed",
        BOTH,
        {"lane_by": "channel"},
        MAINTENANCE,
        clients={"sdk": 1, "loop": 1, "http": 2},
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
        clients={"sdk": 2, "loop": 1, "http": 1},
        faults=KILLING | {"kill_server": 0.3, "crash": 1.0},
        fault_every=0.5,
        senders=1,
        workers=1,
        pace=0.05,
    ),
    # a caller who says that it is alone in its transaction, and is not
    Preset("misuse", BOTH, {"lanes": 3}, MAINTENANCE, misuse=0.8, answers=0.4, open=0.7, pace=0.03, holds=LONG),
]
