"""Search for the records that hold keys of a table: by its lineage, which fields of a topic lead to which key column.

Erasure removes such records; `why-not` says what became of them.
"""
