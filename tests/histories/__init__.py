"""Random histories: sessions that do to one stream whatever they like, and a judge who looks at what they were told.

What happens: `world` says what a history is about (presets), `sessions`, `worker` and `operator` what each thread does,
`record` is what is written down, `run` puts them together.
What is judged: `reading` is a finished history as one consumer met it; `check`, `upserts` and `waiting` are functions
over it that know no database; `story` tells what they found.

    cd tests && python -m histories --preset plain --seed 7
"""
