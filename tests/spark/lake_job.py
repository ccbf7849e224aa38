"""A process that archives the stream "orders" and replays it into "again", in one session of Spark.

python lake_job.py URL DIRECTORY MASTER
"""

from __future__ import annotations

import sys
from pathlib import Path

import headgate
from headgate.pipeline.session import session

sys.path.insert(0, str(Path(__file__).parent.parent))

from spark.lakes import go


def main() -> None:
    url, directory, master = sys.argv[1:]
    lake = f"{directory}/t"
    spark = session("lake", master=master)
    with headgate.connect(url) as hg:
        go(hg, spark, Path(directory), f'kind = "archive"\nname = "lake"\nstream = "orders"\nto = "{lake}"')
        go(hg, spark, Path(directory), f'kind = "replay"\nname = "back"\nsource = "{lake}"\nstream = "again"')
    spark.stop()


if __name__ == "__main__":
    main()
