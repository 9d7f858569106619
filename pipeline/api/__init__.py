"""What a user's program declares: an app, its stages and topics, a table's options. Values only, no Spark."""

__all__ = ["app", "compaction_policy", "starting_offsets", "table", "ttl"]
