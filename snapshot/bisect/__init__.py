"""Finding the commit that made something wrong: the search, its lattice of cuts, the keys that changed."""

__all__ = ["changed_keys", "ends", "judge", "lattice", "predicate", "search", "verdict"]
