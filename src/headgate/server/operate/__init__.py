"""Running a server: `auth` and `auditing`, `metrics` and `logs`, `trace_export`, `availability` of the database,
`pages`.
"""
