"""The file format of state: types, key hashes, writing SSTs, Bloom filters, expiry, sorted runs.

Not here: finding rows (`read`), or deciding which SSTs become one (`compaction`).
"""
