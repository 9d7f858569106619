"""Import and export: first versions from rows that DuckDB reads; exports to Parquet folders and Iceberg tables."""
