"""The routes, a module a noun: each decodes, makes one call of the SDK, and encodes.

`requests` are the bodies and queries, `answers` and `answers_messages` what comes back, `routes` the table of all.
"""
