"""Maintenance of an app without its runner: compaction, protection, removal, archive filling, and tokens.

Each change is committed by compare-and-swap, like the versions that runners commit.
"""
