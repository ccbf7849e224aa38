"""Pipelines: streams to a lake and back, transformed, reported on; declared in a file and run on Spark."""

from __future__ import annotations

from .spec import Archive, Latest, Pipeline, Replay, Report, Transform, load, parse

__all__ = ["Archive", "Latest", "Pipeline", "Replay", "Report", "Transform", "load", "parse"]
