"""What Spark's own page and listeners see of the kinds that are no streaming queries: archive and latest.

Each batch is a group of jobs, described in words, and an observation of its counts: a QueryExecutionListener finds them
in `observedMetrics`, by the name that `observation` gives.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f


def observation(pipeline: str) -> str:
    """The name of a pipeline's observations, and of its group of jobs."""
    return f"headgate {pipeline}"


def describe(spark: Any, pipeline: str, text: str) -> None:
    """Says what the jobs that follow are for."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):  # which has tags and no descriptions
        spark.addTag(observation(pipeline).replace(" ", "-"))
    else:
        spark.sparkContext.setJobGroup(observation(pipeline), f"{pipeline}: {text}")


def observed(frame: Any, pipeline: str, *columns: str) -> Any:
    """The frame, whose sums of these columns are observed as it is worked on."""
    return frame.observe(observation(pipeline), *(f.sum(name).alias(name) for name in columns))
