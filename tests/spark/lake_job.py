"""A process that copies the stream "orders" to "copy" and, with a table to archive it to, replays that into "again".

python lake_job.py URL DIRECTORY MASTER [TABLE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import headgate
from headgate.pipeline.session import session

sys.path.insert(0, str(Path(__file__).parent.parent))

from spark.frames import arriving, copying, finish
from spark.lakes import go


def main() -> None:
    url, directory, master, *table = sys.argv[1:]
    spark = session("lake", master=master)
    with headgate.connect(url) as hg:
        finish(copying(arriving(spark, hg, maxRowsPerTrigger=3000), hg, "copy", Path(directory) / "checkpoint"))
        for lake in table:
            go(hg, spark, Path(directory), f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{lake}"')
            go(hg, spark, Path(directory), f'kind = "replay"\nname = "back"\nsource = "{lake}"\nstream = "again"')
    spark.stop()


if __name__ == "__main__":
    main()
