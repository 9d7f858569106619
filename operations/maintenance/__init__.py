"""Maintenance outside of runners: compaction, protection and removal of apps, filling of archives, tokens.

Each change is committed by compare-and-swap, like versions that runners commit.
"""
