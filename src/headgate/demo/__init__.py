"""A shop that moves: what `headgate demo` runs, for people who look before they read.

`shop` makes streams and consumers, `traffic` sends what customers do, `staff` handles it (and fails at some of it),
`receiver` is an HTTP endpoint that a consumer pushes to, `serving` the demo's own server, which ends with it however
that ends, and `run` starts all of them beside a server and stops them.
"""

from .run import Started, remove, run

__all__ = ["Started", "remove", "run"]
