"""Leaves (objects with SST entries, to which a manifest refers), and folds, which write leaves.

Elsewhere: the choice of merges, and the SSTs themselves.
"""
