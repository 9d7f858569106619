"""Finding rows: decoding SSTs, the cache on this machine, multi-get, range reads, the DuckDB view of a table.

Nothing here writes to the store.
"""
