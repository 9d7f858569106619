"""Repair of an app by hand: rewind to an earlier moment, reset of offsets, edits, rejected records.

The versions are decided, and the effect of an edit is computed, in `snapshot.change`.
"""
