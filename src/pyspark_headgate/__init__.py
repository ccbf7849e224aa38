"""Spark finds `format("headgate")` by the name of this module."""

from headgate.spark import HeadgateDataSource as DefaultSource

__all__ = ["DefaultSource"]
