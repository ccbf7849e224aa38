"""Benchmarks of Spark's source and sink, and of archives."""
