"""Finding the commit that made something wrong: predicates, the search over cuts, its session, the changed keys."""

__all__ = [
    "changed_keys",
    "check",
    "ends",
    "flips",
    "judge",
    "lattice",
    "narrow",
    "predicate",
    "programs",
    "record",
    "search",
    "session",
    "verdict",
]
