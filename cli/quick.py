"""Shortcuts that save half a second per verb: fewer imports and garbage collections, and a faster exit."""

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

_runs_one_verb = _hides_plugins = _skips_teardown = False
_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Environment variable that disables pydantic's search for plugins in all packages; typer uses pydantic."""
_GC_THRESHOLD = 100_000
"""Allocations between two garbage collections. Python's default, 700, takes a sixth of a `get`'s time."""


class _PandasBlocker:
    """Import hook that reports pandas as not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def tune_for_one_verb() -> None:
    """Record that this process runs only one verb; collect garbage less often, and disable pydantic plugins."""
    global _runs_one_verb, _hides_plugins
    _runs_one_verb, _hides_plugins = True, _PLUGINS not in os.environ
    gc.set_threshold(_GC_THRESHOLD)
    os.environ.setdefault(_PLUGINS, "__all__")


def restore_plugins() -> None:
    """Re-enable pydantic plugins after the command line is parsed, since the user's program may use pydantic."""
    if _hides_plugins:
        os.environ.pop(_PLUGINS, None)


class _FastParam:
    """Conversion of one parameter that leaves plain text unchanged, without loading pydantic.

    Most words of a command line are plain text, and loading pydantic takes a sixth of the time of a `get`.
    """

    def __init__(self, descriptor: Any, otherwise: Callable[[Any], Any]) -> None:
        self._descriptor, self._otherwise = descriptor, otherwise

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        annotation, is_plain = self._descriptor.annotation, self._descriptor.parameter_info.parser is None
        # A default already has the right type.
        if value is param.default or (is_plain and annotation is str and type(value) is str):
            return value
        if is_plain and annotation == list[str] and isinstance(value, list | tuple) and {*map(type, value)} <= {str}:
            return [*value]
        return self._otherwise(self._descriptor).coerce(value, param=param, ctx=ctx)


def install_fast_params() -> None:
    """Make typer convert parameters by `_FastParam`, if this version of typer allows it."""
    core: Any = import_module("typer.core")
    if (build := getattr(core, "build_runtime_param", None)) is not None and not isinstance(build, partial):
        core.build_runtime_param = partial(_FastParam, otherwise=build)


class _LazyModule(ModuleType):
    """Placeholder for a module, imported at the first access to an attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["_loading"] = RLock()

    def __getattr__(self, name: str) -> Any:
        with self._loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = import_module(self.__name__)
            self.__dict__.update(module.__dict__)
        return getattr(module, name)


def skip_user_code_setup() -> None:
    """Skip work in Arrow and Python that only a user's code would need. Called by verbs that run no user code.

    Arrow does not import pandas for the first Python list that it converts, so it does not recognize pandas' missing
    values; `to_pandas` still imports pandas. Arrow's compute functions are imported at first use. The documentation of
    their options, whose parsing takes a tenth of a `query`'s time, is not parsed. `exit_without_teardown` then ends the
    process early. Does nothing in a process that runs more than one verb.
    """
    global _skips_teardown
    if not _runs_one_verb or "pandas" in sys.modules:
        return
    _skips_teardown = True
    sys.modules.setdefault("pyarrow.compute", _LazyModule("pyarrow.compute"))
    parser = ModuleType("pyarrow.vendored.docscrape")
    parser.NumpyDocString = lambda _text: {"Parameters": ()}  # type: ignore[attr-defined]
    sys.modules.setdefault(parser.__name__, parser)
    none = _PandasBlocker()
    sys.meta_path.insert(0, none)
    try:
        import pyarrow as pa

        # Arrow looks for pandas once; afterwards, only Arrow's functions for pandas look for it.
        pa.array([0])
    finally:
        sys.meta_path.remove(none)


def exit_without_teardown(code: int | str | None) -> None:
    """End the process without the interpreter's teardown, if no user code ran. Saves a fifth of a `get`'s time.

    First joins threads, runs `atexit` functions, and flushes both streams. If user code may have run, the process ends
    here only if a daemon thread still runs; otherwise this function returns. With a daemon thread, teardown is
    dangerous before Python 3.14: when the thread needs the interpreter, its stack is unwound. Native code on this
    stack, for example in a sink's function, may then crash.
    """
    daemons = _runs_one_verb and any(thread.daemon for thread in threading.enumerate())
    if isinstance(code, str) or not (_skips_teardown or daemons):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
