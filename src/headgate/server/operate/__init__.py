"""Running a server.

`auth` and `auditing`, `hiding` (payloads that not everybody sees), `metrics`, `logs` and `trace_export`,
`availability` of the database, `pages`.
"""
