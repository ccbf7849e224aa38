"""What a message is to Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

MESSAGE = StructType(
    [
        StructField("seq", LongType()),
        StructField("key", StringType()),
        StructField("data", StringType()),
        StructField("headers", StringType()),  # a JSON object
        StructField("channel", StringType()),
        StructField("lane", LongType()),
        StructField("created_at", TimestampType()),
        StructField(
            "tick", LongType()
        ),  # of two messages with different ticks, the one with the higher tick was read later
    ]
)

ARROW = pa.schema(
    [
        ("seq", pa.int64()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("headers", pa.string()),
        ("channel", pa.string()),
        ("lane", pa.int64()),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("tick", pa.int64()),
    ]
)  # the same

STREAM = StructField("stream", StringType())  # of which stream a message is, where several are read
WITH_STREAM = pa.schema([("stream", pa.string()), *ARROW])


def with_data(messages: DataFrame, schema: StructType | str, *, on_error: str = "null") -> DataFrame:
    """Messages with `data` decoded from JSON by a schema (a StructType, or text such as "id long, total double").

    Data that is not JSON, or does not fit, becomes null; with `on_error="fail"` the query fails instead.
    """
    mode = {"null": "PERMISSIVE", "fail": "FAILFAST"}[on_error]
    return messages.withColumn("data", f.from_json("data", schema, {"mode": mode}))
