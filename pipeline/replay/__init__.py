"""Running one batch of history again, whole or in part, on a Spark of this machine: nothing of the app is touched.

What to run next is decided without Spark in `snapshot/bisect/`.
"""

__all__ = [
    "alone",
    "breakpoints",
    "bundle",
    "bundled",
    "compare",
    "expectation",
    "function",
    "inputs",
    "program",
    "record",
    "rejects",
    "stage_replay",
    "why",
    "zipped",
]
