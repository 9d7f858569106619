"""One file a verb: load settings, call one function of the library, hand the result to the output.

Not here: what a verb does, and any heavy import at a module's top.
"""

__all__ = ["VERBS"]

VERBS = (
    "dev",
    "run",
    "init",
    "status",
    "log",
    "snapshot",
    "verify",
    "query",
    "sql",
    "export",
    "get",
    "diff",
    "history",
    "bisect",
    "replay",
    "rejected",
    "watch",
    "clone",
    "migrate",
    "rescale",
    "retire",
    "compact",
    "gc",
    "app",
)
"""In the order of `--help`. Each is what has its name in the module of its name, imported when it is asked for."""
