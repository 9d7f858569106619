"""Finding rows: decoding SSTs, the cache on this machine, multi-get, range reads, the DuckDB view of a table.

Nothing here writes to the store.
"""

__all__ = [
    "cache",
    "cache_folder",
    "decode",
    "duckdb_versions",
    "duckdb_view",
    "due_rows",
    "footers",
    "mapped_file",
    "multi_get",
    "parquet_copies",
    "range_reads",
    "read_stats",
    "remote_sst",
    "table_rows",
    "visible_rows",
]
