"""Moments of a whole app: from refs to consistent cuts, snapshots, queries, log, lineage, diff, status.

Reads what the store holds and writes only small objects beside it: snapshots, requests, the log of operations. It uses
`fold` and `store` and nothing above: no Spark and no Kafka. What needs them comes in through a small Protocol
(`take.capture.ChannelReader`). Import the modules one by one: DuckDB and pyarrow are loaded only by those that query.
"""

__all__ = ["cut", "diff", "query", "status", "take"]
