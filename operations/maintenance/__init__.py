"""Maintenance from outside the runner: compact, protect, remove an app, fill the archive, tokens.

Each change is one commit by compare-and-swap, as those of runners are.
"""
