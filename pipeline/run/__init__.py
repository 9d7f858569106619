"""A running app: check its program, claim its stages, start, watch and stop their queries, metrics."""

__all__ = [
    "backpressure",
    "completer",
    "main",
    "metrics",
    "news",
    "options",
    "outlook",
    "runner",
    "snapshot_names",
    "spool_folder",
    "stopping",
    "watch",
    "worker_daemon",
]
