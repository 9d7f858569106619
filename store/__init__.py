"""Objects, manifests and SSTs: versions of one stage's state, and how they are written, found and read.

Here: the object stores (S3, a folder, memory) behind `objects.ObjectStore`; manifests, their codec, the
commit by compare-and-swap, epochs; SSTs, multi-get, cache, compaction; DuckDB relations over one version.

Not here: anything about several stages at one moment (`snapshot`), Spark or Kafka (`pipeline`), the marker
protocol (`chandy_lamport`). Importing this package loads none of boto3, pyarrow and duckdb: import the module
that needs them.
"""

__all__ = ["compaction", "objects", "read", "sst", "versions"]
