"""The file format of state: column types, key hashes, SST writing, Bloom filters, expiry, sorted runs.

Not here: looking up rows (`read`), or choosing SSTs to merge (`compaction`).
"""
