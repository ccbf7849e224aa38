"""One look as lines of text, for `--once`."""

from __future__ import annotations

from .figures import clean, count, estimated, rate, seconds
from .looking import Look

HEADS = ("TROUBLE", "STREAM/CONSUMER", "LAG", "OLDEST", "RATE/S", "FLIGHT", "PARKED", "DEAD")


def as_text(seen: Look) -> str:
    """The totals, then a line a consumer."""
    t = seen.totals
    total = (
        f"sent {rate(t['sent'])}/s  delivered {rate(t['delivered'])}/s  waiting {count(t['lag'])}  "
        f"in flight {count(t['in_flight'])}  parked {count(t['parked'])}  dead {count(t['dead'])}"
    )
    rows = [HEADS, *(
        (
            line.trouble.word, clean("/".join(line.name)), estimated(line.info.lag, line.info.exact), seconds(line.age),
            rate(line.info.rate), count(line.info.in_flight), count(line.info.parked), count(line.info.dead),
        )
        for line in seen.lines
    )]  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEADS))]
    lines = [
        "  ".join(
            text.ljust(w) if n < 2 else text.rjust(w) for n, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    left = seen.lines_found - len(seen.lines)
    return "\n".join([total, *(line.rstrip() for line in lines), *([f"and {left:,} more: --search"] if left else [])])
