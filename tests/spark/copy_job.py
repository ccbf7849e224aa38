"""A process that copies a stream with Spark until it has copied everything: to be killed by a test.

python copy_job.py URL FROM TO CHECKPOINT ROWS [MASTER]: prints a line for each batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import headgate
from headgate.pipeline.session import session

sys.path.insert(0, str(Path(__file__).parent.parent))

from spark.frames import arriving, copying


def main() -> None:
    url, source, to, checkpoint, rows, *master = sys.argv[1:]
    spark = session("copy", master=master[0] if master else "local[2]")
    with headgate.connect(url) as hg:
        query = copying(arriving(spark, hg, source, maxRowsPerTrigger=rows), hg, to, Path(checkpoint))
        print("started", flush=True)
        last = -1
        while not query.awaitTermination(0.05):
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > last:
                last = progress["batchId"]
                print(last, flush=True)
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
