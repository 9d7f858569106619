"""Moments of a whole app: refs, cuts, the graph of stages, consistency, in-flight records, lineage of input.

Reads manifests; writes only requests for snapshots. Reads no rows of tables.
"""

__all__ = ["graph", "in_flight", "line", "lineage", "moments", "refs", "resolve", "stored"]
