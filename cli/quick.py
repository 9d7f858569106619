"""What spares a verb of a second most of that: collections of garbage while it imports, and the import of pandas."""

import gc
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_whole_process = _hides_plugins = False
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Typer reads words by pydantic, which would look for plugins in the metadata of all that is installed."""
_OBJECTS = 100_000
"""Made between two collections. By Python's own measure, 700, a sixth of a verb that reads a row went into them."""


class _NoPandas:
    """Says that there is no pandas."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Python's hook."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def own_process() -> None:
    """Say that this process runs one verb and nothing else."""
    global _whole_process, _hides_plugins
    _whole_process, _hides_plugins = True, _PLUGINS not in os.environ
    gc.set_threshold(_OBJECTS)
    os.environ.setdefault(_PLUGINS, "__all__")


def verb_begins() -> None:
    """Say that the words are read: from here on pydantic, which reads them, is the user's program's too."""
    if _hides_plugins:
        os.environ.pop(_PLUGINS, None)


def without_pandas() -> None:
    """Keep Arrow from importing pandas when it is first given a Python list; `to_pandas` still imports it.

    Only for verbs that run no code of the user's: Arrow would not know pandas' missing values from others. Does nothing
    in a process that runs more than the verb.
    """
    if not _whole_process or "pandas" in sys.modules:
        return
    none = _NoPandas()
    sys.meta_path.insert(0, none)
    try:
        import pyarrow as pa

        # Arrow looks for pandas once, and then only where it is asked for something of pandas.
        pa.array([0])
    finally:
        sys.meta_path.remove(none)
