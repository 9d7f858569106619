"""Slackwater: a time machine for the state of streaming applications on Spark.

A program declares its app with these names; `slackwater run FILE` runs the app. `open` gives access to stored apps.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import FileFinder
from typing import TYPE_CHECKING, Any

from . import errors

__version__ = "0.1.0"

__all__ = ["App", "__version__", "because", "errors", "open"]
__all__ += ["decode", "delta", "event_time", "foreach_version", "iceberg", "leveled", "repartition", "sink", "table"]
__all__ += ["read_delta", "read_files", "read_iceberg", "topic", "universal"]
__all__ += ["aggregate", "count", "first", "join", "last", "max", "mean", "min"]
__all__ += ["pandas_state", "processor", "sum", "update", "upsert"]

if TYPE_CHECKING:
    from .app import App
    from .client import open
    from .pipeline.api.sink import foreach_version, sink
    from .pipeline.api.source import read_delta, read_files, read_iceberg
    from .pipeline.api.spark_code import pandas_state, processor
    from .pipeline.api.stage import event_time
    from .pipeline.api.table import leveled, table, universal
    from .pipeline.api.table_sink import delta, iceberg
    from .pipeline.api.topic import repartition, topic
    from .pipeline.api.update import update
    from .pipeline.messages.decode import decode
    from .snapshot.take.audit_log import because
    from .state.kinds.aggregate import aggregate, count, first, last, max, mean, min, sum
    from .state.kinds.join import join
    from .state.kinds.upsert import upsert

_MODULES = {
    "App": "app",
    "because": "snapshot.take.audit_log",
    "decode": "pipeline.messages.decode",
    "open": "client",
    **{name: f"pipeline.api.{name}" for name in ("sink", "table", "topic", "update")},
    "event_time": "pipeline.api.stage",
    **dict.fromkeys(("pandas_state", "processor"), "pipeline.api.spark_code"),
    "foreach_version": "pipeline.api.sink",
    "repartition": "pipeline.api.topic",
    **dict.fromkeys(("read_delta", "read_files", "read_iceberg"), "pipeline.api.source"),
    **dict.fromkeys(("delta", "iceberg"), "pipeline.api.table_sink"),
    **dict.fromkeys(("leveled", "universal"), "pipeline.api.table"),
    **{name: f"state.kinds.{name}" for name in ("aggregate", "join", "upsert")},
    **dict.fromkeys(("count", "first", "last", "max", "mean", "min", "sum"), "state.kinds.aggregate"),
}
_PUBLIC_MODULES = ("errors", "testing")
# Names in Spark, SQL and Kafka Streams, for suggestions.
_FOREIGN_NAMES = {
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("collect", "groupBy", "group_by", "reduce"), "aggregate"),
    **dict.fromkeys(("read", "readStream", "source", "stream"), "topic"),
    **dict.fromkeys(("stage", "run"), "App"),
    **dict.fromkeys(("client", "connect", "Client"), "open"),
    **dict.fromkeys(("foreach", "foreachBatch", "foreach_batch"), "foreach_version"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Imported lazily: the command line imports this package too, and must not wait for Arrow.
    from importlib import import_module

    if name not in _MODULES:
        from .common.validation import nearest_hint

        near = (
            f"; did you mean {_FOREIGN_NAMES[name]!r}?"
            if name in _FOREIGN_NAMES
            else nearest_hint(name.lower(), __all__)
        )
        if name.startswith("_"):
            near = ""  # Python looks these up itself
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}", name=name)
    try:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    except ModuleNotFoundError:
        from .common.extras import require_extras

        require_extras("spark", f"slackwater.{name}")
        raise


class _Finder:
    """Finds modules like Python's own finder, but lists only public modules, for `help`."""

    def __init__(self, finder: FileFinder) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        yield from ((prefix + name, False) for name in _PUBLIC_MODULES)


for _folder in __path__:
    if isinstance(_finder := sys.path_importer_cache.get(_folder), FileFinder):
        sys.path_importer_cache[_folder] = _Finder(_finder)
