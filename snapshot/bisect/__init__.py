"""Bisect: finds the first commit at which a predicate over an app's tables turned from good to bad.

`search` runs the binary search, and `session` saves the search and its answers. `evidence` collects the context of a
result, and `watcher` evaluates invariants periodically. Read-only, except for the tag `last-good`.
"""
