"""The routes, a module a noun: its requests, its responses and its handlers stand together.

`fields` is what they are made of, `routes` the table of all.
"""
