"""Finding rows: fetching and decoding SSTs, the cache on this machine, multi-get, range reads, a table's DuckDB view.

A batch's keys are looked up by `multi_get`, which looks in the blocks (`decode`) that `cache` has or fetches whole
(`fetch`), and reads of other SSTs the pages that it needs (`remote_sst`). Nothing here writes to the store.
"""
