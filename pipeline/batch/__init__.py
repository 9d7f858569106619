"""One micro-batch of one stage, from its plan to its commit."""

__all__ = [
    "applied",
    "batch_report",
    "committer",
    "head",
    "job",
    "pre_aggregation",
    "query",
    "schemas",
    "snapshot_events",
    "stage_config",
    "stage_job",
    "stage_runner",
    "task",
]
