"""Random histories: sessions that do to one stream whatever they like, and a judge who looks at what they were told.

`world` says what a history is about (presets), `sessions` what each thread does, `record` is what is written down,
`run` puts them together, and `check` judges the finished history without a database; `story` tells what it found.

    cd tests && python -m histories --preset plain --seed 7
"""
