"""`headgate bench`: Headgate beside pgmq and a raw COPY, in one run on one server.

    plan        how long and how much: the full run, the quick one
    server      the PostgreSQL that everything runs on
    contenders  what is compared, each the way its users run it, behind one small interface
    backlog     making queues, and filling them inside the server
    processes   worker processes, and what they do between "go" and the end of a round
    throughput, fanout, latency, endurance, lanes    the benchmarks
    results     figures, targets, and how they are written
    report      the page with tables and plots
    looking     how long it takes to look at large and many streams
    tables      how fast changes of tables come in: `python -m headgate.bench.tables`
    http/       `headgate bench http`: the HTTP server under the load of many clients
    spark/      `headgate bench spark`: Spark's source, sink and archives

Absolute figures belong to a machine and an hour. The contenders take turns in short rounds, so noise hits all of them
alike, and what counts are the ratios.
"""
