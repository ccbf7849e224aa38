"""Headgate for Spark: streams as data sets, and data sets as streams.

    spark.readStream.format("headgate").option("stream", "orders").load()
    df.writeStream.format("headgate").option("stream", "orders")

`pip install headgate[spark]` is all it takes: Spark finds the format by name.
"""

from __future__ import annotations

from ..lake.secrets import keep_secret
from .datasource import HeadgateDataSource
from .messages import MESSAGE, with_data

__all__ = ["MESSAGE", "HeadgateDataSource", "keep_secret", "with_data"]
