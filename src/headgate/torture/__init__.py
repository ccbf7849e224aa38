"""`headgate torture`: sessions that do to one stream whatever they like, and a judge of what they were answered.

`presets` say what a history is about. `sessions` (threads) and `clients` (processes) do it, in an `environment` that
has faults; `record` is what is written down, `run` puts them together. `judge` says what is certainly wrong in it, and
`report` shows that. `meetings` leave nothing to luck: each two calls meet at each point of the engine.
"""
