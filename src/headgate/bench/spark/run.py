"""One run of the benchmarks of Spark, warm, in one session on this machine's cores."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import headgate
from headgate.errors import Error

from ..command import finish
from ..plan import MESSAGE_BYTES
from ..report import Page
from ..results import Result, Run, compare, machine, measure, own_versions
from ..server import server_for

MESSAGES = 2_000_000
ROUNDS = 5
TASKS = 2

PAGE = Page(
    {
        "source": ("Source", "A stream read to nowhere, as one batch and as a streaming query. Baseline: rows that a "
                             "plain data source yields as tuples from a psycopg cursor."),
        "archive": ("Archive", "A stream to a Delta table, in one batch."),
        "sink": ("Sink", "Rows that Spark makes, into a stream, exactly once."),
    },
    {"source": ("way", "messages")},
    "`headgate bench spark --report DIR`",
    (
        f"Messages of {MESSAGE_BYTES} bytes, one stream with 16 hashed lanes, local[{TASKS}]. Spark and PostgreSQL "
        "share the machine.",
        "A figure is the median of its rounds, after some that warm up: the JVM compiles what it runs often.",
    ),
)  # fmt: skip


def spark(
    args: argparse.Namespace,
    *,
    say: Callable[[Any], None],
    talk: Callable[[str], None],
    watch: Callable[[Sequence[str]], Iterable[str]],
) -> int:
    """Runs the benchmarks, writes what they found, and returns the exit code."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Error("Spark is not installed", hint="pip install 'headgate[spark]'") from error
    messages = max(1000, int(MESSAGES * args.scale * (1 if args.quick else 2.5)))
    names = watch(("source", "archive", "sink"))
    return finish(args, lambda: run(names, messages, database=args.database, talk=talk), say, talk, PAGE)


def run(
    names: Iterable[str], messages: int, *, database: str | None, talk: Callable[[str], None], spark: Any = None
) -> Run:
    """Runs the benchmarks called `names`, on a temporary PostgreSQL or on databases of their own at `database`."""
    from headgate.pipeline.session import session

    versions = own_versions() | {"pyspark": version("pyspark")}
    with ExitStack() as stack:
        server = stack.enter_context(server_for(database, pgmq=False))
        versions["postgresql"] = server.version
        described = machine(server.settings)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        if spark is None:
            spark = session("headgate bench", master=f"local[{TASKS}]")
            stack.callback(spark.stop)
        bench = Bench(server.headgate_url, messages, home, spark)
        stack.enter_context(bench.hg)
        bench.fill()
        results = measure(names, BENCHMARKS, bench, talk)
    return Run(described, versions, results)


class Bench:
    """What the benchmarks share: a stream full of messages, and Spark."""

    def __init__(self, url: str, messages: int, home: Path, spark: Any) -> None:
        self.url, self.messages, self.home, self.spark = url, messages, home, spark
        self.hg = headgate.connect(url, migrate=True)
        self.rounds = 0

    def fill(self) -> None:
        """Makes the stream that is read."""
        self.hg.stream("bench", create=True, lanes=16)
        for first in range(1, self.messages + 1, 100_000):
            self.hg.run(
                "select count(*) from (select headgate.send_batch('bench', array_agg(rpad(i::text, %s)), "
                "array_agg('k' || i %% 10000)) from generate_series(%s::int, %s::int) i group by i / 10000) x",
                (MESSAGE_BYTES, first, min(first + 99_999, self.messages)),
            )
        self.hg.run("select headgate.tick('bench')", ())

    def rates(self, *works: Callable[[], object], warm_up: int = 1) -> list[float]:
        """Rows a second of each work: the median of some rounds, in turns, after `warm_up` more."""
        found: list[list[float]] = [[] for _ in works]
        for _ in range(warm_up + ROUNDS):
            for work, rates in zip(works, found, strict=True):
                self.rounds += 1
                start = time.monotonic()
                work()
                rates.append(self.messages / (time.monotonic() - start))
        return [median(rates[warm_up:]) for rates in found]

    def read(self) -> Any:
        """The stream as a batch."""
        return self.spark.read.format("headgate").options(url=self.url, stream="bench", tasks=TASKS).load()


def source(bench: Bench) -> list[Result]:
    """Reading to nowhere."""
    from .rows import RowsDataSource

    bench.spark.dataSource.register(RowsDataSource)
    rows = bench.spark.read.format("headgate_bench_rows")
    rows = rows.options(url=bench.url, messages=bench.messages, tasks=TASKS)

    def streaming() -> None:
        read = bench.spark.readStream.format("headgate").options(url=bench.url, stream="bench", tasks=TASKS).load()
        checkpoint = str(bench.home / f"checkpoint{bench.rounds}")
        write = read.writeStream.format("noop").option("checkpointLocation", checkpoint)
        write.trigger(availableNow=True).start().awaitTermination()

    def nowhere(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    works = (lambda: nowhere(bench.read()), lambda: nowhere(rows.load()), streaming)
    own, by_rows, streamed = bench.rates(*works, warm_up=3)
    batch = {"headgate": own, "baseline": by_rows}
    about: dict[str, int | str] = {"way": "batch", "messages": bench.messages}
    return [
        compare("source", about, batch, unit="rows/s", against="baseline", target=3.0),
        Result("source", {**about, "way": "streaming"}, "rows/s", headgate=streamed, target=300_000,
               target_is="value at least"),
    ]  # fmt: skip


def archive(bench: Bench) -> list[Result]:
    """To a Delta table, each round to a new one."""
    from headgate.pipeline import Archive
    from headgate.pipeline.run import run as run_pipeline

    def once() -> None:
        name = f"archive{bench.rounds}"
        pipeline = Archive(name=name, stream="bench", to=str(bench.home / name), compact=False)
        run_pipeline(pipeline, bench.hg, bench.spark, directory=bench.home / f"{name}.own")

    return [_value("archive", bench, bench.rates(once)[0], 120_000)]


def sink(bench: Bench) -> list[Result]:
    """Rows that Spark makes into a stream, each round into a new one."""

    def once() -> None:
        name = f"sink{bench.rounds}"
        bench.hg.stream(name, create=True, lanes=16)
        made = bench.spark.range(0, bench.messages, 1, TASKS)
        made = made.selectExpr("concat('k', id % 10000) as key", f"rpad(cast(id as string), {MESSAGE_BYTES}) as data")
        made.write.format("headgate").options(url=bench.url, stream=name).mode("append").save()

    return [_value("sink", bench, bench.rates(once)[0], 80_000)]


def _value(name: str, bench: Bench, rate: float, target: float) -> Result:
    about: dict[str, int | str] = {"messages": bench.messages}
    return Result(name, about, "rows/s", headgate=rate, target=target, target_is="value at least")


BENCHMARKS = {"source": source, "archive": archive, "sink": sink}
