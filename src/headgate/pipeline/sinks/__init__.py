"""Where a transform's streaming query can write: a lake, a table of PostgreSQL."""
