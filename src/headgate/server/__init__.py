"""The HTTP server: every route decodes, makes one call of the SDK, and encodes.

`app` runs a request, `routing` holds the table of routes (and `openapi` describes the same table), `routes_*` are the
handlers, `requests` and `answers` their types. What calls share is in `server`: `batching` groups small sends, acks
and receives into one commit, `polling` wakes long polls, `auth` checks tokens, `limits` says when it is too much.
"""
