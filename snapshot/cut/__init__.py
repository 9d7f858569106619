"""Moments of a whole app: refs, cuts, the graph of stages, consistency, records in flight, lineage.

Reads manifests and decides; writes nothing but the requests for snapshots. Not here: rows of tables.
"""

__all__ = ["graph", "in_flight", "line", "lineage", "moments", "refs", "resolve", "stored"]
