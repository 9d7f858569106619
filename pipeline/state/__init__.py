"""Kinds of state: aggregate, upsert, update, join. A new kind (sessions) is a module here.

Whole Arrow tables in, whole Arrow tables out; no Spark session and no store.
"""

__all__ = [
    "aggregate",
    "ddl",
    "due",
    "failing",
    "falling",
    "join",
    "merge",
    "multi_input",
    "partial_rows",
    "protocol",
    "update",
    "upsert",
    "waiting",
    "window",
]
