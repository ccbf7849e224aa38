"""Changes of the tables of a PostgreSQL database, by its logical replication (pgoutput, protocol version 1).

Without I/O: `wire` is the frames of streaming replication, `pgoutput` the messages in them, `values` what a value is
as JSON, `changes` the message of the stream that a row becomes, `assembling` batches of those, `snapshots` which
changes a snapshot does not see. With I/O: `connections` are those of sources, `catalog` is what the source knows of
its types and keys, `feed` reads a slot, `buffer` bounds what waits, `backfill` reads rows, `reader` does all of it
for one source, `service` for all that nobody else reads. `checks` say whether a database can be read, `setup` makes
what reading needs; `looking`, `timelines` and `troubles` whether a source can be read on, and why not; `watching` is
for slots that nobody reads.
"""
