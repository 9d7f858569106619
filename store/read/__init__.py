"""Reading of SSTs: whole or by ranges, through a local cache, for look-ups and for DuckDB.

`multi_get` looks up a batch's keys. It searches blocks (`decode`) of SSTs that are in the `cache` or were fetched whole
(`fetch`). Of all remaining SSTs it reads single pages (`remote_sst`). Nothing here writes to the store.
"""
