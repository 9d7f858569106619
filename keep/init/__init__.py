"""A table's first version from rows that DuckDB reads: checked, sorted on disk, and committed at once."""
