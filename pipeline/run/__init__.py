"""A running app: check its program, claim its stages, start, watch and stop their queries, metrics."""

__all__ = [
    "backpressure",
    "catch_up",
    "collector",
    "lag_reporter",
    "metrics",
    "news",
    "options",
    "preflight",
    "program",
    "runner",
    "snapshot_completer",
    "spool_folder",
    "stopping",
    "supervisor",
    "worker_daemon",
]
