"""`headgate torture`: sessions that do to one stream whatever they like, and a judge of what they were told.

What happens: `presets` say what a history is about (`catalogue` has them all); `sessions`, `workers`, `operators`,
`readers` and `lookers` what each thread does, `hands` and `hand` what processes of their own do, `faults` what befalls
all of them (`proxy`, `clock`, `restore`). `record` is what is written down, `run` puts them together; `server` has the
databases (`ground`).
What is judged: `doubts` says what a fault makes uncertain, `reading` is a finished history as one consumer met it;
`check`, `answers`, `pacing`, `upserts`, `waiting`, `marks`, `floors`, `filtering` and `epochs` are functions over it
that know no database.
What is left to nobody's luck: `meetings` of two calls at `points` of the engine, in `worlds` made for it.
What is told: `shrink` makes the history of a finding small, `story` tells it, `picture` draws it (`drawing`), `keep`
has the files; `simpler` looks for a simpler preset that still goes wrong, `settings` are the changes of presets.
"""
