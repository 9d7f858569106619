"""The file format of stored rows: column types, key hashes, SST writing, Bloom filters, expiry, sorted runs.

Elsewhere: look-ups of rows (`read`), and the choice of SSTs to merge (`compaction`).
"""
