"""Kinds of state, one in each file: declaration, columns, merging, times, migration.

Whole Arrow tables in, whole Arrow tables out. Nothing outside asks which kind it is.
"""

from . import aggregate, attached, due, join, pandas_state, processor, session, update, upsert

__all__ = ["aggregate", "attached", "due", "join", "pandas_state", "processor", "session", "update", "upsert"]
