"""Finding rows: decoding SSTs, the cache on this machine, multi-get, range reads, the DuckDB view of a table.

Nothing here writes to the store.
"""

__all__ = [
    "blocks",
    "cache",
    "cache_folder",
    "hot_tier",
    "index",
    "metering",
    "pieces",
    "ranged",
    "reads",
    "relation",
    "shadows",
    "tails",
]
