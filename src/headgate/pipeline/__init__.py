"""Pipelines: streams to a lake and back, transformed, reported on; declared in a file and run on Spark.

`spec` reads the file (`templates` has files to begin with, `times` its times), `checks` and `ddl` say what is wrong
before Spark starts, `run` runs a kind of `kinds/` in a `session`. They read by `spans`, work in `tasks`, and write by
`merge`, `growing_table` (with `columns` of the JSON), or `sinks/`; `compaction` and `vacuum` tidy tables. `report/` is
the page of a report, `spark_ui` what Spark's own page sees.
"""

from __future__ import annotations

from .spec import Archive, Latest, Pipeline, Replay, Report, Transform, load, parse

__all__ = ["Archive", "Latest", "Pipeline", "Replay", "Report", "Transform", "load", "parse"]
