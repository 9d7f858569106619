"""Finding the commit that made something wrong: predicates, the search over the line, its session, the changed keys.

Also what a report tells beside the verdict (`evidence`), invariants that are asked again and again (`watcher`), and
finding items among many by what sets of them do (`delta`, `poison`, which know nothing of either). Only reads, but for
the tag `last-good`.
"""

__all__ = [
    "between",
    "changed_keys",
    "delta",
    "ends",
    "evidence",
    "flips",
    "invariants",
    "judge",
    "poison",
    "predicate",
    "programs",
    "search",
    "session",
    "verdict",
    "watcher",
]
