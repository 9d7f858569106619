"""What takes long over HTTP, or changes something: searches for the commit that made something wrong, snapshots.

Each is bounded in time and in how many are under way, and ends when whoever asked has gone. What may not live here: how
a search goes, or what a snapshot is.
"""
