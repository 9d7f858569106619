"""Shortcuts that save a verb half a second: fewer imports and garbage collections, no teardown of the interpreter."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any

_whole_process = _hides_plugins = _is_spared = False
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Typer reads words by pydantic, which would look for plugins in the metadata of all that is installed."""
_OBJECTS = 100_000
"""Allocations between two garbage collections. With Python's default, 700, collections take a sixth of a `get`."""


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


class _Words:
    """Coercion of one parameter: plain text passes as it is, any other type goes to typer's own, which loads pydantic.

    Pydantic takes a sixth of a `get`, and most words of a command line are plain text.
    """

    def __init__(self, descriptor: Any, otherwise: Callable[[Any], Any]) -> None:
        self._descriptor, self._otherwise = descriptor, otherwise

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the parameter's value, as typer's `RuntimeParam.coerce` does."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        wanted, is_plain = self._descriptor.annotation, self._descriptor.parameter_info.parser is None
        # A default has its type already.
        if value is param.default or (is_plain and wanted is str and type(value) is str):
            return value
        if is_plain and wanted == list[str] and isinstance(value, list | tuple) and {*map(type, value)} <= {str}:
            return [*value]
        return self._otherwise(self._descriptor).coerce(value, param=param, ctx=ctx)


def plain_words() -> None:
    """Make typer use `_Words`. Does nothing with a typer that has no `build_runtime_param`."""
    core: Any = import_module("typer.core")
    if (build := getattr(core, "build_runtime_param", None)) is not None and not isinstance(build, partial):
        core.build_runtime_param = partial(_Words, otherwise=build)


class _Later(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["_loading"] = RLock()

    def __getattr__(self, name: str) -> Any:
        """Python's hook: loads the module, whose names this one has then."""
        with self._loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = import_module(self.__name__)
            self.__dict__.update(module.__dict__)
        return getattr(module, name)


def no_user_code() -> None:
    """Say that this verb runs no code of the user's: Arrow and Python need not do what only that could need.

    Arrow does not import pandas when it is first given a Python list (it would not know pandas' missing values from
    others; `to_pandas` still imports it), and imports its functions once one is asked for; `leave` ends the process.
    Does nothing in a process that runs more than the verb.
    """
    global _is_spared
    if not _whole_process or "pandas" in sys.modules:
        return
    _is_spared = True
    sys.modules.setdefault("pyarrow.compute", _Later("pyarrow.compute"))
    none = _NoPandas()
    sys.meta_path.insert(0, none)
    try:
        import pyarrow as pa

        # Arrow looks for pandas once, and then only where it is asked for something of pandas.
        pa.array([0])
    finally:
        sys.meta_path.remove(none)


def leave(code: int | str | None) -> None:
    """End the process without the interpreter's teardown, a fifth of a `get`, if it ran no code of the user's.

    Joins threads, calls what `atexit` has, and flushes both streams first. Returns where it may not end the process.
    """
    if not _is_spared or isinstance(code, str):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
