"""A shop that moves: what `headgate demo` runs, for people who look before they read.

`shop` makes streams and consumers, `traffic` sends what customers do, `staff` handles it (and fails at some of it),
`receiver` is an HTTP endpoint that a consumer pushes to, and `run` starts all of them beside a server and stops them.
"""

from .run import Started, run

__all__ = ["Started", "run"]
