"""Repair of an app by a user: rewind to an earlier moment, reset of offsets, the list of rejected records.

`snapshot.change` decides the new versions. It also has edits of rows, and requests to retry rejected records.
"""
