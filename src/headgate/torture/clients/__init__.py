"""What processes of their own do: `client` is such a program, with the SDK or HTTP as its `callers`; `processes`
starts, stops and kills them.
"""
