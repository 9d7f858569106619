"""Import and export: first versions from rows that DuckDB reads; exports as Parquet folders and Iceberg tables."""
