"""Finding the commit that made something wrong: predicates, the search over cuts, its session, the changed keys.

And finding records among many, by what sets of them do: `delta` and `poison`, which know nothing of either.
"""

__all__ = [
    "changed_keys",
    "check",
    "delta",
    "ends",
    "flips",
    "judge",
    "lattice",
    "narrow",
    "poison",
    "predicate",
    "programs",
    "record",
    "search",
    "session",
    "verdict",
]
