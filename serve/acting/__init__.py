"""HTTP operations that take long or change state: bisect, verify, replay, snapshot.

Each is limited in time and in number, and is cancelled when the client disconnects. The logic of searches and
snapshots does not belong here.
"""
