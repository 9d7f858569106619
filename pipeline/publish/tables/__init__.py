"""Lakehouse tables as sinks. Each version of a stage is one commit of the table, and the commit names the version.

`protocol` is the interface, `delta` and `iceberg` implement it, and `target` publishes through it. The table's history
maps the table's snapshots to versions; `rollback` chooses the snapshot to which a rewind returns.
"""
