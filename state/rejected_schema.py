"""The columns of `<stage>_rejected`, the table of a stage's rejected records."""

from ..store.versions.manifest import Column, Table

REJECTED_RECORDS = Table(
    key=(
        Column("topic", "string"),
        Column("partition", "int32"),
        Column("offset", "int64"),
        # Position of the row in a message of a repartition topic; 0 for a user's topic.
        Column("row", "int32"),
    ),
    values=(
        Column("input", "string"),
        Column("time", "timestamp[us, tz=UTC]"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("headers", "list<struct<name: string, value: binary>>"),
        Column("error", "string"),
        Column("message", "string"),
        Column("stack", "string"),
        Column("version", "int64"),
        Column("rejected_at", "timestamp[us, tz=UTC]"),
        Column("attempts", "int32"),
        Column("retried", "int64"),
    ),
    partitions=1,
)
"""Schema of rejected records. `input` is the declared name of the topic or channel, `time` the record's
timestamp. `key`, `value` and `headers` are the message's; for a channel's row, `value` is an Arrow stream of that row.
`error` is the class of the error, `version` the version that left the record out, `attempts` the number of failures,
`retried` the version that applied the record.
"""
