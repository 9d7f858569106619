"""Leaves: objects with the entries of SSTs that a manifest refers to, and folds, which write them.

Not here: the choice of merges, or the SSTs themselves.
"""
