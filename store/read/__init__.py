"""Finding rows: decoding SSTs, the cache on this machine, multi-get, range reads, the DuckDB view of a table.

A batch's keys are looked up by `table_rows`, which asks `multi_get`, which looks in the blocks (`decode`) that `cache`
has, and reads of other SSTs the pages that it needs (`remote_sst`). Nothing here writes to the store.
"""
