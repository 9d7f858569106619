"""Entries of SSTs in manifests and leaves: as values, as JSON, and their ranges of hashes.

Pure. Not here: reading and writing leaves (`leaves`).
"""
