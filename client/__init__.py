"""Python API of slackwater for notebooks, scripts and tests: queries and changes the stored state of streaming apps.

`slackwater.open()` is the entry point. Methods call the same functions as the verbs of the command line. They take
Python values and return values with a readable repr. Errors are those of `slackwater.errors`. Terminal output (typer,
rich) does not belong here, and neither does a second implementation of an operation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .client import Client, open

if TYPE_CHECKING:
    from ..snapshot.query.columns import TableColumn
    from .app import StoredApp
    from .moment import Bisection, Moment, Tables
    from .results import Difference, KeyHistory, Log, TableDifference, Verification

__all__ = [
    "Bisection",
    "Client",
    "Difference",
    "KeyHistory",
    "Log",
    "Moment",
    "StoredApp",
    "TableColumn",
    "TableDifference",
    "Tables",
    "Verification",
    "open",
]

_MODULES = {
    "StoredApp": ".app",
    "TableColumn": "..snapshot.query.columns",
    **dict.fromkeys(("Bisection", "Moment", "Tables"), ".moment"),
    **dict.fromkeys(("Difference", "KeyHistory", "Log", "TableDifference", "Verification"), ".results"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Lazy, because the command line imports this package and must not wait for Arrow and DuckDB.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
