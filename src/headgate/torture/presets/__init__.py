"""What histories are about: `preset` (a stream, its consumers, who does what how often), `catalogue` (all that there
are: `traffic`, `storage` and `trouble`), `listing` (what each is about, in a line), `settings` (changes by hand).
"""
