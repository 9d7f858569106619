"""One file a verb: load settings, call one function of the library, hand the result to the output.

Not here: what a verb does, and any heavy import at a module's top.
"""

__all__ = [
    "app",
    "bisect",
    "clone",
    "compact",
    "dev",
    "gc",
    "get",
    "log",
    "query",
    "rescale",
    "retire",
    "run",
    "snapshot",
    "status",
    "verify",
]
