"""One micro-batch of one stage, from its plan to its commit; claiming a stage; compaction beside it."""

__all__ = [
    "claim",
    "committer",
    "compactor",
    "entries",
    "job",
    "meter",
    "prefetcher",
    "progress",
    "schemas",
    "snapshot_events",
    "stage_runner",
    "task",
    "write_stall",
]
