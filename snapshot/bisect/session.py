"""Bisect sessions: JSON files with a search request and its answers, which a user can read, correct and resume.

Each app has one session, in which every search saves its request and answers. As with git, the session's log is a list
of commands that replay the session.

Also contains predicates that are programs: a Python function, or a command that receives the moment as a file.
"""

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import SkipTest

import duckdb
import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from ...errors import NotFound, Refused, SlackwaterError, Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions.side_tables import table_declarations
from ..cut.resolve import report_if_collected
from ..query.export import create_file, write_empty, write_table
from ..query.sql import connect
from .endpoints import BEGINNING
from .predicate import AnyTablePredicate, Context, ManualPredicate, Predicate, Skip, parse_check, parse_where
from .search import Edge
from .verdict import Answer, Evaluation

PredicateFunction = Callable[[duckdb.DuckDBPyConnection], object]
"""Function of a DuckDB connection, which has the moment's tables as views. Returns True if the moment is good."""

_SKIP_EXIT_CODE = 125
_STOP_EXIT_CODE = 128
"""Lowest exit code that stops the search.

As in `git bisect run`, 0 is good, 125 is skip, and other lower codes are bad.
"""


@dataclass(frozen=True, slots=True)
class PythonPredicate(AnyTablePredicate):
    """Predicate that calls a function with a DuckDB connection, whose views are the moment's tables.

    A true value or None means good, so a function made of `assert`s works. Any other false value, or an AssertionError,
    means bad. A missing table or column, or `unittest.SkipTest`, means skip. Tables that the function creates are in
    memory and are discarded. Any other exception ends the search as `SlackwaterError`.
    """

    function: PredicateFunction

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        with (
            report_if_collected(at.store, at.cut),
            closing(connect(at.store, at.cache, at.cut, empty=table_declarations(at.later))) as con,
        ):
            try:
                answer = self.function(con)
            except AssertionError as error:
                return _wrong_row(str(error) or "an assertion failed")
            except SkipTest as error:
                raise Skip(str(error) or "skipped") from None
            except (duckdb.CatalogException, duckdb.BinderException) as error:
                raise Skip(str(error).partition("\n")[0], is_column_missing=True) from error
            except SlackwaterError:
                raise
            except Exception as error:
                raise _user_error(self.text, error) from error
            return _NO_ROWS if answer is None or answer else _wrong_row(f"it returned {answer!r}")


@dataclass(frozen=True, slots=True)
class CommandPredicate(AnyTablePredicate):
    """Predicate that runs a shell command, with exit codes as in `git bisect run`.

    The command gets `SLACKWATER_DB`, a DuckDB file with the moment's tables, and `SLACKWATER_REF`, the moment's ref.
    Its output goes to stderr.
    """

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        with tempfile.TemporaryDirectory(prefix="slackwater-bisect-") as folder:
            path = Path(folder) / "moment.duckdb"
            with report_if_collected(at.store, at.cut), create_file(path) as con:
                for table in at.cut.tables:
                    write_table(con, at.store, at.cache, at.cut, table)
                for table, declared in table_declarations(at.later).items():
                    if table not in at.cut.tables:
                        write_empty(con, table, declared)
            names = {"SLACKWATER_DB": str(path), "SLACKWATER_REF": at.ref, "SLACKWATER_APP": at.cut.app}
            command = ["/bin/sh", "-c", self.text]
            code = subprocess.run(command, env=os.environ | names, stdout=2, check=False).returncode
        if code == _SKIP_EXIT_CODE:
            raise Skip(f"exit code {_SKIP_EXIT_CODE}")
        if not 0 <= code < _STOP_EXIT_CODE:
            ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
            raise SlackwaterError(
                f"the command stopped the search with {ended} at {at.ref or 'the beginning'}: {self.text}",
                hint="exit codes: 0 good, 125 skip, other codes up to 127 bad; higher ones stop the search",
            )
        return _wrong_row(f"exit code {code}") if code else _NO_ROWS


def load_python_predicate(text: str) -> PythonPredicate:
    """Load the predicate `FILE:function` from a Python file, whose folder is searched first for its imports.

    Raises `Usage` if the file or function does not exist, and `SlackwaterError` if the file raises an exception.
    """
    name, _, function = text.rpartition(":")
    path = Path(name)
    if not name or not path.is_file():
        raise Usage(f"expected FILE:function, found {text!r}" + (f": there is no file {name}" if name else ""))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Usage(f"{name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _user_error(name, error) from error
    value = getattr(module, function, None)
    if not callable(value):
        raise Usage(f"{name} has no function {function!r}")
    return PythonPredicate(text, value)


# If the argument were a list, pyarrow would import pandas.
_NO_ROWS = pa.table({"wrong": pa.nulls(0, pa.string())})


def _wrong_row(why: str) -> pa.Table:
    return pa.table({"wrong": [why]})


def _user_error(source: str, error: Exception) -> SlackwaterError:
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith(("<frozen", __file__))]
    frames = "".join(traceback.format_list(own)).rstrip()
    detail = f": {error}" if str(error) else ""
    return SlackwaterError(f"{source} raised {type(error).__name__}{detail}", quoted=frames)


FORMAT: Literal[1] = 1
_PREDICATE_OPTIONS = ("where", "check", "python", "run")
_OPTIONS = ("where", "check", "table", "python", "run", "good", "bad")


class SearchRequest(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Search request: app, predicate, ends and edge. Without a predicate, a person judges each moment."""

    app: str
    where: str = ""
    check: str = ""
    table: str = ""
    python: str = ""
    run: str = ""
    good: str = ""
    bad: str = ""
    edge: Edge = ""

    def make_predicate(self, store: ObjectStore) -> Predicate:
        """Return the predicate of the request.

        Raises `Usage` if several predicates are given, and the errors of `parse_check`.
        """
        given_options = [name for name in _PREDICATE_OPTIONS if getattr(self, name)]
        if len(given_options) > 1:
            raise Usage(f"--{given_options[0]} and --{given_options[1]} exclude each other: give one of them")
        if self.table and not (self.where or self.check):
            raise Usage(f"the table {self.table} needs a --where or --check condition, and neither is given")
        if self.where:
            return parse_where(store, self.app, self.where, self.table)
        if self.check:
            return parse_check(store, self.app, self.check, self.table)
        if self.python:
            return load_python_predicate(self.python)
        return CommandPredicate(self.run) if self.run else ManualPredicate()

    @property
    def is_manual(self) -> bool:
        return not any(getattr(self, name) for name in _PREDICATE_OPTIONS)


class KnownAnswer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Answer for a moment, made by an evaluation or given by a person."""

    ref: str
    answer: Answer
    why: str = ""
    took_ms: int = 0
    by_hand: bool = False


class SearchSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Saved state of a search: the request, the answers, and the result."""

    store: str
    asked: SearchRequest
    marks: tuple[KnownAnswer, ...] = ()
    """Answers in the order given. If a moment has several answers, the last answer counts."""
    wanted: str | None = None
    """Ref of the moment that a person has to judge next; None if there is none."""
    found: str = ""
    format: Literal[1] = FORMAT

    @property
    def answers_by_ref(self) -> dict[str, Answer]:
        return {answer.ref: answer.answer for answer in self.marks}

    def with_step(self, step: Evaluation) -> "SearchSession":
        """Return a copy with an evaluation added.

        The first two evaluations replace the refs of the ends by fixed refs.
        """
        request = self.asked
        if not self.marks:
            request = replace(request, bad=step.ref)
        elif len(self.marks) == 1 and request.good and not step.bad:
            request = replace(request, good=step.ref)
        return replace(self.with_answers(KnownAnswer(step.ref, step.answer, step.why, step.took_ms)), asked=request)

    def with_answers(self, *answers: KnownAnswer) -> "SearchSession":
        """Return a copy with these answers added, and without the previous search result."""
        refs = {answer.ref for answer in answers}
        previous = (answer for answer in self.marks if answer.ref not in refs)
        return replace(self, marks=(*previous, *answers), wanted=None, found="")

    def write(self, folder: Path) -> None:
        """Replace the app's session file atomically. Raises `Refused` if the folder is not writable."""
        path = session_path(folder, self.asked.app)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
            part.replace(path)
        except OSError as error:
            raise Refused(f"cannot write the bisect session {path}: {error.strerror}") from None


def session_path(folder: Path, app: str) -> Path:
    return folder / f"bisect-{app}.json"


def read_session(folder: Path, app: str) -> SearchSession:
    """Return the session of an app. Raises `NotFound`, and `Refused` if the file cannot be read or decoded."""
    path = session_path(folder, app)
    try:
        return msgspec.json.decode(path.read_bytes(), type=SearchSession)
    except FileNotFoundError:
        apps = [path.stem.removeprefix("bisect-") for path in folder.glob("bisect-*.json")]
        hint = f"every search keeps one; `slackwater bisect start {app}` starts one by hand"
        raise NotFound("bisect session of app", app, apps, hint=hint) from None
    except (msgspec.DecodeError, OSError) as error:
        raise Refused(
            f"{path} is not a bisect session in format {FORMAT}: {error}",
            hint=f"`slackwater bisect reset {app}` removes it",
        ) from None


def format_log(session: SearchSession) -> Iterator[str]:
    """Yield the lines of the session's log: comments, and commands that replay the session."""
    request = session.asked
    yield f"# bisect of {request.app} in {session.store}"
    options = [word for name in _OPTIONS if (value := getattr(request, name)) for word in (f"--{name}", value)]
    edge = [f"--{request.edge}"] if request.edge else []
    yield shlex.join(["slackwater", "bisect", *(["start"] if request.is_manual else []), request.app, *options, *edge])
    for mark_entry in session.marks:
        if mark_entry.why:
            yield f"# {' '.join(mark_entry.why.split())}"
        yield shlex.join(["slackwater", "bisect", mark_entry.answer, request.app, mark_entry.ref or BEGINNING])
    if session.found:
        yield f"# {session.found}"


def parse_log(text: str, store: str) -> SearchSession:
    """Parse a log into a session. The session's answers count as answers of a person.

    Raises `Usage` for a malformed log.
    """
    session: SearchSession | None = None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            arguments = shlex.split(line, comments=line.lstrip().startswith("#"))
        except ValueError as error:
            raise Usage(f"line {number} of the log cannot be read: {error}") from None
        if not arguments:
            continue
        if arguments[:2] != ["slackwater", "bisect"] or len(arguments) < 3:
            raise Usage(f"line {number} of the log is not a `slackwater bisect` command: {line}")
        if session is None:
            session = SearchSession(store, _parse_request(arguments[2:], number))
        elif len(arguments) == 5 and arguments[2] in ("good", "bad", "skip") and arguments[3] == session.asked.app:
            ref = "" if arguments[4] == BEGINNING else arguments[4]
            session = session.with_answers(KnownAnswer(ref, arguments[2], by_hand=True))  # type: ignore[arg-type]
        else:
            raise Usage(f"line {number} of the log is not `slackwater bisect good|bad|skip APP REF`: {line}")
    if session is None:
        raise Usage("the log is empty: expected a line `slackwater bisect …` first")
    return session


def _parse_request(arguments: list[str], number: int) -> SearchRequest:
    fields: dict[str, str] = {}
    app, *options = (arguments[1:] if arguments[0] == "start" else arguments) or [""]
    while options:
        name, _, value = options.pop(0).partition("=")
        if name in ("--first", "--last"):
            fields["edge"] = name[2:]
        elif name[2:] in _OPTIONS and name.startswith("--") and (value or options):
            fields[name[2:]] = value or options.pop(0)
        else:
            raise Usage(f"line {number} of the log: expected an option of bisect, found {name!r}")
    if not app or app.startswith("-"):
        raise Usage(f"line {number} of the log names no app")
    return msgspec.convert({"app": app, **fields}, SearchRequest)
