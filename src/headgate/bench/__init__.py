"""`headgate bench`: Headgate beside pgmq and a raw COPY, in one run on one server.

    plan        how long and how much: the full run, the quick one
    server      the PostgreSQL that everything runs on
    sides       what is compared, each the way its users run it, behind one small interface
    backlog     making queues, and filling them inside the server
    crew        worker processes, and what they do between "go" and the end of a round
    throughput, fanout, latency, endurance, lanes    the benchmarks
    results     figures, targets, and how they are written
    report      the page with tables and plots

Absolute figures belong to a machine and an hour. The sides take turns in short rounds, so noise hits all of them alike,
and what counts are the ratios.
"""
