"""The Python API over stored apps: what the command line's verbs do, for notebooks, scripts and tests.

`slackwater.open()` begins it. Everything is done by the functions that the verbs call; here they get Python values as
arguments and give values that show themselves well. What may not live here: words for a terminal (typer, rich), and
any second way to do something. Errors are those of `slackwater.errors`.
"""

from typing import TYPE_CHECKING, Any

from .app import StoredApp
from .client import Client, open
from .history import Bisection
from .moment import Moment, Tables
from .results import Difference, KeyHistory, Log, TableDifference, Verification

if TYPE_CHECKING:
    from ..snapshot.query.columns import TableColumn

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


def __getattr__(name: str) -> Any:
    # It knows Arrow, which whoever only opens a store shall not wait for.
    if name != "TableColumn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..snapshot.query.columns import TableColumn

    return TableColumn
