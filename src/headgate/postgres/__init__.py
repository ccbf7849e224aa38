"""PostgreSQL servers of our own: `cluster` is one of any version, `embedded` the private one that the processes of a
directory share, `guard` the process that stops it when its users are gone.
"""
