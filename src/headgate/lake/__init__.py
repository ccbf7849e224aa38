"""Delta tables without a Spark extension: below `spark` and `pipeline`.

`table` commits, `files` writes and reads Parquet in tasks, `columns` has Spark's types as Delta has them, `storage`
the directory or object store; `secrets` is what nobody may see, `points` are where tests kill.
"""
