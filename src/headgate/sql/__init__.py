"""The engine's SQL: numbered migrations for tables, and the current definitions of all functions and views."""
