"""A message queue and an event stream that live inside PostgreSQL."""

__version__ = "0.1.0"
