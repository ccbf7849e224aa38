"""The engine's SQL, which `database.schema` puts together into the script that makes or upgrades a schema.

install/     what comes before and after: locks, roles, who is in the way
migrations/  tables, numbered; each runs once and is never edited
functions/   the current definitions of all functions, made anew by each upgrade
templates/   functions that are put together out of named steps: for each stream, and the two that all share
views.sql, rights.sql    what callers may see, and who may call what
"""
