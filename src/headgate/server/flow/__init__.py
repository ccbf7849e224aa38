"""What makes many small calls cheap.

`batching` puts them into one commit, `polling` lets any number wait, `snapshots` are looks that all open pages share;
`searching` looks for what no index knows, and not without end.
"""
