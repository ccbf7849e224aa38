"""A process that copies the stream "orders" to "copy", archives it and replays it into "again", in one Spark session.

python lake_job.py URL DIRECTORY MASTER
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
    url, directory, master = sys.argv[1:]
    lake = f"{directory}/t"
    spark = session("lake", master=master)
    with headgate.connect(url) as hg:
        finish(copying(arriving(spark, hg, maxRowsPerTrigger=3000), hg, "copy", Path(directory) / "checkpoint"))
        go(hg, spark, Path(directory), f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{lake}"')
        go(hg, spark, Path(directory), f'kind = "replay"\nname = "back"\nsource = "{lake}"\nstream = "again"')
    spark.stop()


if __name__ == "__main__":
    main()
