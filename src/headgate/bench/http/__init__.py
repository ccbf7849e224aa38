"""`headgate bench http`: the HTTP server under load, on loopback, with a database of its own.

wire        connections that cost little
load        what the clients of a round do, in a process of their own
replicas    the servers
measure     the benchmarks: traffic, single sends, waking, waiting, and the same sends through the SDK
run         one run of them
"""
