"""Tables from and for elsewhere: first versions from rows that DuckDB reads, exports as Parquet or Iceberg."""
