"""Reading of SSTs: whole or by ranges, through a local cache, for look-ups and for DuckDB.

`multi_get` looks up a batch's keys. It searches blocks (`decode`) of SSTs that are in the `cache` or were fetched whole
(`fetch`). It reads single pages of all other SSTs (`remote_sst`). No module here writes to the store.
"""
