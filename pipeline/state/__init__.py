"""Kinds of state: aggregate, upsert, update. A new kind (sessions, joins) is a module here.

Whole Arrow tables in, whole Arrow tables out; no Spark session and no store.
"""

__all__ = [
    "aggregate",
    "ddl",
    "due",
    "failing",
    "falling",
    "merge",
    "multi_input",
    "protocol",
    "update",
    "upsert",
    "window",
]
