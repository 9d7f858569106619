"""Kinds of state, one module each: declaration, columns, merging of rows, due times, migration rules.

All functions take and return whole Arrow tables. Other packages do not depend on a particular kind.
"""

from . import aggregate, due, join, pandas_state, processor, session, update, upsert

__all__ = ["aggregate", "due", "join", "pandas_state", "processor", "session", "update", "upsert"]
