"""A search as it is kept: what was asked, and each answer; a file that people can read, mend and go on from.

All ways of searching keep one, for each app. Its log is the commands that give it again, as with git.

Here too: predicates that are programs, a Python function, and a command that gets the moment as a file.
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
from ...store.versions.side_tables import columns_of
from ..cut.resolve import telling_if_collected
from ..query.export import new_file, write_empty, write_table
from ..query.sql import connect
from .endpoints import BEGINNING
from .predicate import ByHand, Context, OfAllTables, Predicate, Skip, check, where
from .search import Edge
from .verdict import Answer, Evaluation

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


FORMAT: Literal[1] = 1
_WAYS = ("where", "check", "python", "run")
_OPTIONS = ("where", "check", "table", "python", "run", "good", "bad")


class Asked(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is searched for, as it was typed. Without a predicate a person looks at each moment."""

    app: str
    where: str = ""
    check: str = ""
    table: str = ""
    python: str = ""
    run: str = ""
    good: str = ""
    """A ref; empty for the beginning."""
    bad: str = ""
    """A ref; empty for now."""
    edge: Edge = ""

    def predicate(self, store: ObjectStore) -> Predicate:
        """What says whether a moment is bad. Raises `Usage` for several, or a malformed one, and as `check`."""
        said = [name for name in _WAYS if getattr(self, name)]
        if len(said) > 1:
            raise Usage(f"--{said[0]} and --{said[1]} both say what is wrong; give one of them")
        if self.table and not (self.where or self.check):
            raise Usage(f"the table {self.table} is that of --where or --check, and neither is given")
        if self.where:
            return where(store, self.app, self.where, self.table)
        if self.check:
            return check(store, self.app, self.check, self.table)
        if self.python:
            return load(self.python)
        return Command(self.run) if self.run else ByHand()

    @property
    def by_hand(self) -> bool:
        """Whether a person looks at each moment."""
        return not any(getattr(self, name) for name in _WAYS)


class KnownAnswer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a moment was found, or said, to be."""

    ref: str
    """Empty for the one before the first commit."""
    answer: Answer
    why: str = ""
    took_ms: int = 0
    by_hand: bool = False


class KeptSearch(Struct, frozen=True, forbid_unknown_fields=True):
    """A search."""

    store: str
    """The root of the store that has the app."""
    asked: Asked
    marks: tuple[KnownAnswer, ...] = ()
    """In their order; of one moment, the last counts."""
    wanted: str | None = None
    """The moment that a person is to look at; None when nobody is."""
    found: str = ""
    """What the search ended with, in a sentence."""
    format: Literal[1] = FORMAT

    @property
    def known(self) -> dict[str, Answer]:
        """The answers, by ref."""
        return {mark.ref: mark.answer for mark in self.marks}

    def with_step(self, step: Evaluation) -> "KeptSearch":
        """The session with a predicate's answer. The first ones fix the ends, which may be named by today's date."""
        asked = self.asked
        if not self.marks:
            asked = replace(asked, bad=step.ref)
        elif len(self.marks) == 1 and asked.good and not step.bad:
            asked = replace(asked, good=step.ref)
        return replace(self.with_marks(KnownAnswer(step.ref, step.answer, step.why, step.took_ms)), asked=asked)

    def with_marks(self, *marks: KnownAnswer) -> "KeptSearch":
        """The session with more answers, so that nothing is found yet."""
        refs = {mark.ref for mark in marks}
        kept = (mark for mark in self.marks if mark.ref not in refs)
        return replace(self, marks=(*kept, *marks), wanted=None, found="")

    def write(self, folder: Path) -> None:
        """Keep it, in the place of the app's session before. Raises `Refused` when the folder cannot be written."""
        path = path_of(folder, self.asked.app)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
            part.replace(path)
        except OSError as error:
            raise Refused(f"the session cannot be kept in {path}: {error.strerror}") from None


def path_of(folder: Path, app: str) -> Path:
    """Where an app's session is kept."""
    return folder / f"bisect-{app}.json"


def read(folder: Path, app: str) -> KeptSearch:
    """The session of an app. Raises `NotFound`, and `Refused` where it is none that this version can read."""
    path = path_of(folder, app)
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptSearch)
    except FileNotFoundError:
        known = [each.stem.removeprefix("bisect-") for each in folder.glob("bisect-*.json")]
        hint = f"`slackwater bisect start {app}` begins one, as does every search"
        raise NotFound("session of bisect for app", app, known, hint=hint) from None
    except (msgspec.DecodeError, OSError) as error:
        raise Refused(
            f"{path} is not a session of bisect in format {FORMAT}: {error}",
            hint=f"`slackwater bisect reset {app}` removes it",
        ) from None


def log_of(session: KeptSearch) -> Iterator[str]:
    """The lines that give the session again: comments, and commands as they would be typed."""
    asked = session.asked
    yield f"# bisect of {asked.app} in {session.store}"
    options = [word for name in _OPTIONS if (value := getattr(asked, name)) for word in (f"--{name}", value)]
    edge = [f"--{asked.edge}"] if asked.edge else []
    yield shlex.join(["slackwater", "bisect", *(["start"] if asked.by_hand else []), asked.app, *options, *edge])
    for mark in session.marks:
        if mark.why:
            yield f"# {' '.join(mark.why.split())}"
        yield shlex.join(["slackwater", "bisect", mark.answer, asked.app, mark.ref or BEGINNING])
    if session.found:
        yield f"# {session.found}"


def of_log(text: str, store: str) -> KeptSearch:
    """The session that the lines of a log give. Answers are taken as said by a person. Raises `Usage`."""
    session: KeptSearch | None = None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=line.lstrip().startswith("#"))
        except ValueError as error:
            raise Usage(f"line {number} of the log cannot be read: {error}") from None
        if not words:
            continue
        if words[:2] != ["slackwater", "bisect"] or len(words) < 3:
            raise Usage(f"line {number} of the log is no `slackwater bisect …`: {line}")
        if session is None:
            session = KeptSearch(store, _asked_by(words[2:], number))
        elif len(words) == 5 and words[2] in ("good", "bad", "skip") and words[3] == session.asked.app:
            ref = "" if words[4] == BEGINNING else words[4]
            session = session.with_marks(KnownAnswer(ref, words[2], by_hand=True))  # type: ignore[arg-type]  # one of these
        else:
            raise Usage(f"line {number} of the log is not `slackwater bisect good|bad|skip APP REF`: {line}")
    if session is None:
        raise Usage("the log is empty: expected a line `slackwater bisect …` first")
    return session


def _asked_by(words: list[str], number: int) -> Asked:
    """What the first line asks for; `words` are those behind `slackwater bisect`."""
    found: dict[str, str] = {}
    app, *options = (words[1:] if words[0] == "start" else words) or [""]
    while options:
        name, _, value = options.pop(0).partition("=")
        if name in ("--first", "--last"):
            found["edge"] = name[2:]
        elif name[2:] in _OPTIONS and name.startswith("--") and (value or options):
            found[name[2:]] = value or options.pop(0)
        else:
            raise Usage(f"line {number} of the log: expected an option of bisect, found {name!r}")
    if not app or app.startswith("-"):
        raise Usage(f"line {number} of the log names no app")
    return msgspec.convert({"app": app, **found}, Asked)
