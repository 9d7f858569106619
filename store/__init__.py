"""Storage of one stage's state: object stores, manifests and SSTs, with their writers and readers.

Here: object stores (S3, a folder, memory) with one interface, `objects.ObjectStore`; manifests, their codec, the commit
by compare-and-swap, epochs; SSTs, multi-get, cache, compaction; DuckDB relations over one version.

Not here: cuts across stages (`snapshot`), Spark or Kafka (`pipeline`), the marker protocol (`chandy_lamport`).
Importing this package loads none of boto3, pyarrow and duckdb: import the module that needs them.
"""

__all__ = ["compaction", "objects", "read", "sst", "versions"]
