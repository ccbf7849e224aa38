"""What the SDK and the database say to each other.

`schema` knows the scripts that make the tables and functions, `statements` the calls, `parameters` what callers
pass, `columns` and `outgoing` what a send writes, `encoding` how data becomes text, `drivers` the connections that
callers bring, `forks` what a child process does with those of its parent.
"""
