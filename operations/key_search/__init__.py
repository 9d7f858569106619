"""Search for the records that hold keys of a table. The table's lineage shows which fields of a topic become a key.

Erasure removes such records; `why-not` reports their fate.
"""
