"""HTTP without its routes.

`listening` has the sockets, `protocol` a connection, `exchange` a request on it and its answer, `app` matches it
with a row of `routing`; `openapi` describes these rows. `payload` is a message's data, `errors` what a caller is told;
`limits` ends what is too slow or too much, and `memory` gives back what was large.
"""
