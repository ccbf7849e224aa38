"""transform: a stream to another stream, a table of PostgreSQL, or a lake."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import InvalidArgument
from ..spark import with_data
from .run import Job, follow
from .spec import Transform


def run(pipeline: Transform, job: Job) -> None:
    """Runs the query; its checkpoint makes it go on where it stopped."""
    messages = job.source(
        pipeline.stream,
        start=pipeline.start,
        filter=",".join(pipeline.filter) if pipeline.filter else None,
        maxRowsPerTrigger=pipeline.rows_per_batch,
    )
    if pipeline.schema is not None:
        messages = with_data(messages, pipeline.schema)
    result = transformed(pipeline, job.spark, messages)
    if pipeline.to_stream is None:
        raise InvalidArgument("only to_stream is there yet", hint="give to_stream")
    writer = result.writeStream.format("headgate").options(url=job.url, stream=pipeline.to_stream)
    query = writer.option("checkpointLocation", str(job.directory / "checkpoint")).trigger(**pipeline.trigger).start()
    follow(query, job, pipeline.stream)


def transformed(pipeline: Transform, spark: Any, messages: Any) -> Any:
    """What the user's SQL or function makes of the messages."""
    if pipeline.sql is not None:
        return (
            spark.sql(pipeline.sql, messages=messages)
            if "{messages}" in pipeline.sql
            else _over_view(pipeline.sql, spark, messages)
        )
    assert pipeline.python is not None
    module, _, name = pipeline.python.partition(":")
    try:
        function = getattr(importlib.import_module(module), name or "transform")
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"{pipeline.python} cannot be found: {error}", hint="write module:function") from error
    return function(messages)


def _over_view(sql: str, spark: Any, messages: Any) -> Any:
    messages.createOrReplaceTempView("messages")
    return spark.sql(sql)
