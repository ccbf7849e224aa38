"""Workers: handlers that are called for each message of a consumer, or of several.

`lifecycle` starts and stops a worker, `engine` is what it does in between, by way of `subscription` (one consumer's
calls and counts). Without I/O: `inflight` (what it has claimed, and what is to be said of it), `turns` (which of
several consumers is served next), `options`. `runners` run the handlers (`handlers`: of which kind they are), `leases`
are the lanes of leased consumers, `connections` its own way to the database, `signals` SIGTERM and SIGINT, `timings`
samples for reports, `program` what `headgate worker` runs.
"""
