"""Replication of an app to another store, and recovery from the replica: offsets, fencing, losses, drills."""
