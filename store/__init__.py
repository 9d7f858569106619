"""Storage of one stage's state: object stores, manifests and SSTs, with their writers and readers.

This package has object stores (S3, a folder, memory) with one interface, `objects.ObjectStore`. It has manifests, their
JSON format, epochs, and commits by compare-and-swap. It also has SSTs, look-ups of many keys, a local cache,
compaction, and DuckDB views of one version.

Elsewhere: cuts across stages (`snapshot`), Spark and Kafka (`pipeline`), the marker protocol (`chandy_lamport`).
Importing this package loads none of boto3, pyarrow and duckdb: import the module that needs them.
"""

__all__ = ["compaction", "objects", "read", "sst", "versions"]
