"""HTTP without its routes.

`listening` has the sockets, `protocol` a connection, `exchange` a request on it and its answer, `app` matches it
with a row of `routing`; `openapi` describes these rows. `call` is a request on its way through a handler, `payload`
a message's data, `errors` what a caller is told; `deadlines` and `limits` end what is too slow or too much.
"""
