"""Repair of an app by hand: rewind to an earlier moment, reset of offsets, edits, rejected records.

The versions are decided in `snapshot.change`, and `state.kinds.replaced` applies an edit to rows.
"""
