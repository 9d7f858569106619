"""One micro-batch of one stage, from its plan to its commit; claiming a stage; compaction beside it."""

__all__ = [
    "batch_report",
    "claim",
    "committer",
    "compactor",
    "job",
    "meter",
    "next_manifest",
    "places",
    "prefetcher",
    "schemas",
    "snapshot_events",
    "stage_runner",
    "start_positions",
    "task",
    "write_stall",
]
