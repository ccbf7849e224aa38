"""What several presets have in common."""

from __future__ import annotations

from typing import Any

from .preset import plan

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
FEW_WORKERS: dict[str, Any] = {"workers": 3, "batch": 12, "observers": 1, "long_nack": 0.3, "delays": 0.1}
BOTH = (plan("free", ack_wait=0.6), plan("ordered", order="key", ack_wait=0.8))
MORTAL = (plan("free", ack_wait=0.4, max_deliver=2), plan("ordered", order="key", ack_wait=0.5, max_deliver=2))
