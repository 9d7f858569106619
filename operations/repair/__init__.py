"""Repair of an app by hand: rewind to an earlier moment, reset of offsets, the list of rejected records.

The versions are decided in `snapshot.change`, which also has edits and requests for retries.
"""
