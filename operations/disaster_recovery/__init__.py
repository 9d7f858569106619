"""Replication of an app to another store root, and recovery of the app from its replica."""
