"""The HTTP server: every route decodes, makes one call of the SDK, and encodes.

`app` runs a request, `routing` holds the table of routes (and `openapi` describes the same table), `routes_*` are the
handlers, `shapes` the bodies and answers. What several requests share is in `service`: `batching` groups small sends
and acks into one commit, `polling` wakes long polls, `auth` checks tokens, `limits` says when it is too much.
"""
