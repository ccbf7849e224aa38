"""The seven ways in which Spark writes exactly once, run side by side: each stops at a point, and all are killed.

python seven.py URL DIRECTORY [MASTER]: runs them until they are done, each in a thread, in one Spark.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import headgate
from headgate.pipeline.session import session

sys.path.insert(0, str(Path(__file__).parent.parent))

from spark.frames import arriving, copying, finish
from spark.lakes import go

ROWS = 100  # in a batch
SELECT = "select key, data, headers from messages"
PIPELINES = {
    "archive": 'kind = "archive"\nstream = "orders"\nto = "{directory}/archive"\npartition_by = []',
    "replay": 'kind = "replay"\nsource = "{directory}/old"\nstream = "again"',
    "to_stream": f'kind = "transform"\nstream = "orders"\nsql = "{SELECT}"\nto_stream = "other"',
    "to_table": f'kind = "transform"\nstream = "orders"\nsql = "{SELECT}"\nto_table = "numbers"',
    "to_lake": f'kind = "transform"\nstream = "orders"\nsql = "{SELECT}"\nto_lake = "{{directory}}/made"',
    "latest": 'kind = "latest"\nstream = "orders"\nto = "{directory}/now"',
}
# where each may stop: before its commit, and between it and what comes after
POINTS = {
    "sink": ("staged-copy", "sent-copy"),
    "archive": ("written-archive", "added-archive", "noted-archive"),
    "replay": ("staged-again", "sent-again"),
    "to_stream": ("staged-other", "sent-other"),
    "to_table": ("staged-numbers", "loaded-numbers", "cleaned-numbers"),
    "to_lake": ("written-made", "added-made"),
    "latest": ("written-now", "added-now"),
}


def work(name: str, spark: Any, hg: headgate.Headgate, directory: Path) -> None:
    """Runs one of them as far as there is something."""
    if name == "sink":
        finish(copying(arriving(spark, hg, maxRowsPerTrigger=ROWS), hg, "copy", directory / "checkpoint"), 3600)
        return
    text = PIPELINES[name].format(directory=directory)
    go(hg, spark, directory, f'{text}\nname = "{name}"\nrows_per_batch = {ROWS}')


def patiently(name: str, spark: Any, hg: headgate.Headgate, directory: Path) -> None:
    """The same again where Spark gave a Python process its ten seconds to start, and the machine was too busy: after a
    while that differs, or all seven would start theirs at once, again and again."""
    for _ in range(100):
        try:
            return work(name, spark, hg, directory)
        except Exception as error:
            if not any("failed to connect back" in str(each) for each in (error, error.__cause__)):
                raise
        time.sleep(random.uniform(1, 20))
    raise TimeoutError(name)


def all_of(spark: Any, url: str, directory: Path) -> dict[str, BaseException]:
    """Runs all of them; returns what went wrong."""
    wrong: dict[str, BaseException] = {}

    def one(name: str) -> None:
        try:
            with headgate.connect(url) as hg:
                mine = spark.newSession()  # what it registers is its own
                mine._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(mine._jsparkSession)
                patiently(name, mine, hg, directory)
        except BaseException as error:
            wrong[name] = error
            print(name, "failed:", error, file=sys.stderr, flush=True)

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in POINTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def main() -> None:
    url, directory, *master = sys.argv[1:]
    spark = session("seven", master=master[0] if master else "local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    with headgate.connect(url) as hg:
        arriving(spark, hg)  # Spark looks for data sources once: before the threads need them
    all_of(spark, url, Path(directory))


if __name__ == "__main__":
    main()
