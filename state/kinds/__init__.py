"""Kinds of state, one in each file: declaration, columns, merging of rows, due times, migration rules.

Whole Arrow tables in, whole Arrow tables out. Other rooms do not depend on a particular kind.
"""

from . import aggregate, due, join, pandas_state, processor, session, update, upsert

__all__ = ["aggregate", "due", "join", "pandas_state", "processor", "session", "update", "upsert"]
