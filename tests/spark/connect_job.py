"""A client of a Spark Connect server, in a process of its own: one process has either such a session or another.

python connect_job.py REMOTE URL DIRECTORY: reads the stream "orders", and prints Spark's plan and what it has read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import headgate
from headgate.pipeline.session import session
from headgate.spark import keep_secret

sys.path.insert(0, str(Path(__file__).parent.parent))

from spark.lakes import go


def main() -> None:
    remote, url, given = sys.argv[1:]
    directory = Path(given)
    spark = session("connect", remote=remote)
    with headgate.connect(url) as hg:
        read = spark.read.format("headgate").options(url=keep_secret(spark, url), stream="orders").load()
        read.explain("extended")
        print("seqs", *sorted(row.seq for row in read.select("seq").collect()))
        transform = 'kind = "transform"\nname = "t"\nstream = "orders"\nschema = "n long"\nto_stream = "large"\n'
        go(hg, spark, directory, transform + 'sql = "select string(data.n) as data from messages where data.n > 100"')
        go(hg, spark, directory, f'kind = "latest"\nname = "now"\nstream = "orders"\nto = "{directory / "now"}"')
    spark.stop()


if __name__ == "__main__":
    main()
