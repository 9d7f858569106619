"""Storage of one stage's state: object stores, manifests and SSTs, with their writers and readers.

This package has object stores (S3, a folder, memory) with one interface, `objects.ObjectStore`; manifests, their JSON
format, the commit by compare-and-swap, and epochs; SSTs, look-ups of many keys, a local cache and compaction; and
DuckDB views of one version.

Elsewhere: cuts across stages (`snapshot`), Spark and Kafka (`pipeline`), the marker protocol (`chandy_lamport`).
Importing this package loads none of boto3, pyarrow and duckdb: import the module that needs them.
"""

__all__ = ["compaction", "objects", "read", "sst", "versions"]
