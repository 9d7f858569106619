"""Predicates that are programs: a Python function, and a command that gets the moment as a file."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unittest import SkipTest

import duckdb
import pyarrow as pa

from ..errors import SlackwaterError, Usage
from ..moments.cut.resolve import telling_if_collected
from ..moments.query.export import new_file, write_empty, write_table
from ..moments.query.sql import connect
from ..store.versions.side_tables import columns_of
from .predicate import Context, OfAllTables, Skip

Function = Callable[[duckdb.DuckDBPyConnection], object]
"""Says of a moment, whose tables are views of the connection, whether it is good."""

_SKIP = 125
_STOP = 128
"""Exit codes as `git bisect run` takes them: 0 is good, 125 a skip, all others below 128 are bad, the rest end it."""


@dataclass(frozen=True, slots=True)
class Python(OfAllTables):
    """A function that gets a DuckDB connection with the tables as views.

    What it returns says whether the moment is good. None is, so that a function of `assert`s alone will do: an
    AssertionError is bad. `unittest.SkipTest` is a skip, and so is a table or column that is not there. What it writes
    is written into memory, and gone with the connection. Whatever else it raises ends the search, as `SlackwaterError`.
    """

    function: Function

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        with (
            telling_if_collected(at.store, at.cut),
            closing(connect(at.store, at.cache, at.cut, empty=columns_of(at.later))) as con,
        ):
            try:
                answer = self.function(con)
            except AssertionError as error:
                return _wrong(str(error) or "an assertion failed")
            except SkipTest as error:
                raise Skip(str(error) or "skipped") from None
            except (duckdb.CatalogException, duckdb.BinderException) as error:
                raise Skip(str(error).partition("\n")[0], lacks=True) from error
            except SlackwaterError:
                raise
            except Exception as error:
                raise _raised(self.text, error) from error
            return _NOTHING if answer is None or answer else _wrong(f"it returned {answer!r}")


@dataclass(frozen=True, slots=True)
class Command(OfAllTables):
    """A shell command; `SLACKWATER_DB` is the moment as a DuckDB file, `SLACKWATER_REF` its ref.

    Its exit code says what the moment is, by the rules of `git bisect run`. What it prints goes to stderr.
    """

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        with tempfile.TemporaryDirectory(prefix="slackwater-bisect-") as folder:
            path = Path(folder) / "moment.duckdb"
            with telling_if_collected(at.store, at.cut), new_file(path) as con:
                for table in at.cut.tables:
                    write_table(con, at.store, at.cache, at.cut, table)
                for table, declared in columns_of(at.later).items():
                    if table not in at.cut.tables:
                        write_empty(con, table, declared)
            names = {"SLACKWATER_DB": str(path), "SLACKWATER_REF": at.ref, "SLACKWATER_APP": at.cut.app}
            command = ["/bin/sh", "-c", self.text]
            code = subprocess.run(command, env=os.environ | names, stdout=2, check=False).returncode
        if code == _SKIP:
            raise Skip(f"exit code {_SKIP}")
        if not 0 <= code < _STOP:
            ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
            raise SlackwaterError(
                f"the command stopped the search with {ended} at {at.ref or 'the beginning'}: {self.text}",
                hint="0 is good, 125 a skip, 1 to 127 bad",
            )
        return _wrong(f"exit code {code}") if code else _NOTHING


def load(text: str) -> Python:
    """The predicate behind `FILE:function`. The file's own folder is where it imports from first.

    Raises `Usage` where there is no such file or function, and `SlackwaterError` where the file raises something.
    """
    name, _, function = text.rpartition(":")
    path = Path(name)
    if not name or not path.is_file():
        raise Usage(f"expected FILE:function, found {text!r}" + (f": there is no file {name}" if name else ""))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Usage(f"{name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _raised(name, error) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise Usage(f"{name} has no function {function!r}")
    return Python(text, found)


# Made of a list, it would have pyarrow import pandas.
_NOTHING = pa.table({"wrong": pa.nulls(0, pa.string())})


def _wrong(why: str) -> pa.Table:
    return pa.table({"wrong": [why]})


def _raised(what: str, error: Exception) -> SlackwaterError:
    """What went wrong in the user's code: its own lines, not ours."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith(("<frozen", __file__))]
    words = "".join(traceback.format_list(own)).rstrip()
    said = f": {error}" if str(error) else ""
    return SlackwaterError(f"{what} raised {type(error).__name__}{said}", quoted=words)
