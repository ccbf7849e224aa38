"""Points between our commits and Spark's, at which a test stops a process and kills it. Elsewhere they do nothing.

HEADGATE_STOP_AT names a directory. A file in it that is called as a point (`sent-copy`: the stream "copy" was sent to)
says how often the point is passed before it stops for good; the file is then renamed to `sent-copy.reached`. Files,
because Spark runs what we commit in processes of its own, of which there may be a new one for each batch.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

STOP_AT = "HEADGATE_STOP_AT"


def point(what: str, target: str) -> None:
    """A point that has been reached: what was done, and to which stream or table."""
    directory = os.environ.get(STOP_AT)
    if directory is None:
        return
    file = Path(directory) / f"{what}-{target.rpartition('/')[2]}"
    if not file.exists():
        return
    left = int(file.read_text())
    if left > 0:
        file.write_text(str(left - 1))
        return
    file.rename(file.with_name(file.name + ".reached"))
    threading.Event().wait()
