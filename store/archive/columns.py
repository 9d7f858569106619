"""Schema of archived records: the columns of Structured Streaming's Kafka source, with headers."""

import pyarrow as pa

TIME = pa.timestamp("ms", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""Arrow schema of archived records. `headers` is null for a record without headers.

`timestampType` is the origin of `timestamp`: 0 for the producer, 1 for the broker, -1 for no timestamp.
"""
