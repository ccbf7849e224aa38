"""What a client over HTTP says instead of SQL: no connections, no waiting.

The SDK has one statement for each of its calls. `calls` finds the HTTP request that stands for a statement: `messages`,
`operate`, `tables` and `looking` have them, `request` is what they are made of. `responses` makes the statement's rows
of what the server answers, `failures` its errors. `headgate.aio.transport` sends them.
"""
