"""Entries of SSTs in manifests and leaves: values, JSON form, and ranges of hashes.

Pure. Elsewhere: reading and writing of leaves (`leaves`).
"""
