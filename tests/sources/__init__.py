"""Changes of tables of a PostgreSQL, read into a stream."""
