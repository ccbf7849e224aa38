"""The judge: pure functions over a finished history, which know no database.

`uncertain` says what a fault makes uncertain, `reading` is the history as one consumer met it; `check` has the list of
checks, which stand by topic in the other modules.
"""
