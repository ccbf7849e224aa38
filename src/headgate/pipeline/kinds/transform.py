"""transform: a stream to another stream, a table of PostgreSQL, or a lake."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from ...lake.columns import stored
from ...lake.table import LakeTable
from ...spark import with_data
from ..checks import function
from ..run import Job, follow
from ..sinks.lake import lake_format
from ..sinks.table import prepare, table, table_format
from ..spec import Transform


def run(pipeline: Transform, job: Job) -> None:
    """Runs the query; its checkpoint makes it go on where it stopped."""
    messages = job.source(
        pipeline.stream,
        start=pipeline.start,
        filter=",".join(pipeline.filter) if pipeline.filter else None,
        maxRowsPerTrigger=pipeline.rows_per_batch,
        failOnDataLoss=not pipeline.skip_removed,
    )
    if pipeline.schema is not None:
        messages = with_data(messages, pipeline.schema)
    result = transformed(pipeline, job.spark, messages)
    writer = _sink(pipeline, job, result)
    query = writer.option("checkpointLocation", str(job.directory / "checkpoint")).trigger(**pipeline.trigger).start()
    follow(query, job, pipeline.stream)


def _sink(pipeline: Transform, job: Job, result: Any) -> Any:
    """Where the result goes. What does not fit there is told before the query starts."""
    writer = result.writeStream
    if pipeline.to_stream is not None:
        return writer.format("headgate").options(url=job.url, stream=pipeline.to_stream)
    if pipeline.to_lake is not None:
        where = job.location(pipeline.to_lake)
        LakeTable(where, stored(result.schema)).open()
        return writer.format(_registered(job, lake_format(where)))
    assert pipeline.to_table is not None
    target = table(job.url, pipeline.to_table, pipeline.table_keys)
    prepare(target, result.schema)
    return writer.format(_registered(job, table_format(target)))


def _registered(job: Job, source: type[DataSource]) -> str:
    job.spark.dataSource.register(source)
    name: str = source.name()
    return name


def transformed(pipeline: Transform, spark: Any, messages: Any) -> Any:
    """What the user's SQL or function makes of the messages."""
    if pipeline.sql is not None:
        return (
            spark.sql(pipeline.sql, messages=messages)
            if "{messages}" in pipeline.sql
            else _over_view(pipeline.sql, spark, messages)
        )
    assert pipeline.python is not None
    return function(pipeline.python)(messages)


def _over_view(sql: str, spark: Any, messages: Any) -> Any:
    messages.createOrReplaceTempView("messages")
    return spark.sql(sql)
