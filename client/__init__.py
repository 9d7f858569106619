"""The Python API over stored apps: what the command line's verbs do, for notebooks, scripts and tests.

`slackwater.open()` begins it. Everything is done by the functions that the verbs call; here they get Python values as
arguments and give values that show themselves well. What may not live here: words for a terminal (typer, rich), and
any second way to do something. Errors are those of `slackwater.errors`.
"""

from ..snapshot.query.columns import TableColumn
from .app import StoredApp
from .client import Client, open
from .moment import Moment, Tables
from .results import Bisection, Difference, KeyHistory, Log, TableDifference, Verification

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
