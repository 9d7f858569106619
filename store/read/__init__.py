"""Reading SSTs: fetching, decoding, the local cache, multi-get, range reads, DuckDB views of a table.

`multi_get` looks up a batch's keys. It searches blocks (`decode`) from the `cache` or from whole fetched objects
(`fetch`), and reads single pages of other SSTs (`remote_sst`). Nothing here writes to the store.
"""
