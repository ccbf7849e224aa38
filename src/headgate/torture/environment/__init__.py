"""Where a history takes place, and what befalls it: `server` makes the databases, `faults` the trouble, by way of
`proxy` (the network), `clock` and `restore`.
"""
