"""HTTP operations that take long or change state: bisect, verify, replay, snapshot.

Each operation has a time limit. Only a few run at once, and a disconnect of the client cancels its operation. The logic
of searches and snapshots is elsewhere.
"""
