"""What is shown of a finding: `shrink` makes its history small, `explain` tells it in lines, `diagram` draws it
(`svg`), `files` keeps it; `simpler` looks for a simpler preset that still goes wrong.
"""
