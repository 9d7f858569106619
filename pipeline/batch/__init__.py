"""One micro-batch of one stage, from its plan to its commit; claiming a stage; compaction beside it."""

__all__ = [
    "arrivals",
    "batch",
    "claiming",
    "committer",
    "compactor",
    "entries",
    "metering",
    "prefetcher",
    "progress",
    "schemas",
    "stage_runner",
    "stall",
    "task",
]
