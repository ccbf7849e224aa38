"""`headgate torture`: sessions that do to one stream whatever they like, and a judge of what they were told.

What happens: `presets` say what a history is about, `sessions`, `workers` and `operators` what each thread does,
`record` is what is written down, `run` puts them together; `server` has the databases.
What is judged: `reading` is a finished history as one consumer met it; `check`, `upserts` and `waiting` are functions
over it that know no database; `story` tells what they found.
"""
