"""The file format of state: types, key hashes, writing SSTs, Bloom filters, expiry, sorted runs.

Not here: finding rows (`read`), or deciding which SSTs become one (`compaction`).
"""

__all__ = [
    "filter",
    "hashing",
    "python_values",
    "runs",
    "sst",
    "stamps",
    "ttl",
    "type_names",
    "types",
    "whole",
    "xxh64",
]
