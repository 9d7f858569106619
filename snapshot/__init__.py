"""Moments of a whole app: refs, cuts, snapshots, verify, log, lineage, queries, diff, bisect, clone, init, invariants.

Everything here reads what the store holds and writes only small objects beside it: snapshots, requests, the
log of operations, and a clone's first manifests. It uses `store` and nothing above it: no Spark and no Kafka.
What needs them comes in through a small Protocol (`clone.channels.Channels`, `verify.verify.Rereader`). Import the
modules one by one: DuckDB and pyarrow are loaded only by those that query.
"""

__all__ = [
    "backfill",
    "bisect",
    "clone",
    "cut",
    "diff",
    "gc",
    "init",
    "maintain",
    "query",
    "status",
    "take",
    "verify",
]
