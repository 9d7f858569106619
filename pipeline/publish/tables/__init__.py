"""Tables of a lakehouse as sinks: each version of a stage is one commit of the table, which also names the version.

`protocol` is the seam, `delta` and `iceberg` are its two sides, `target` publishes by it. The table's own history says
which of its snapshots belongs to which version; `rollback` chooses the snapshot that a rewind returns to.
"""
