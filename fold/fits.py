"""Whether a stage of a program fits the history that is stored of it: the same, what it changes, or why it cannot.

A run asks before it claims a stage, and takes nothing but the same; a migration carries out what changes. Values only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Refused
from ..store.versions.manifest import Manifest, Table
from .columns import ANOTHER_STAGE, ColumnChange, evolve


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """One stage of a program."""

    name: str
    inputs: Mapping[str, str]
    """By declared name the stage that writes it; empty for a user's topic."""
    outputs: Mapping[str, str]
    """The channels that it writes, by declared name, and their columns as Spark DDL."""
    table: Table | None
    """As the program would make it. `Column.default` is what it says of rows from before."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A program, as an app of some name."""

    app: str
    stages: Mapping[str, DeclaredStage]


@dataclass(frozen=True, slots=True)
class TableFit:
    """What a program makes of a stage's table."""

    table: Table | None = None
    """As it is from then on; None where the stage keeps none."""
    columns: tuple[ColumnChange, ...] = ()
    """What becomes of its columns, as users see it."""
    others: bool = False
    """Whether the order of its columns, or how it is declared, is another, and nothing else of it is."""
    refused: Refused | None = None
    """Why what is stored cannot be kept; None where it can."""

    @property
    def same(self) -> bool:
        """Whether the stage goes on as it is."""
        return self.refused is None and not self.columns and not self.others


def fit_table(stage: str, stored: Table | None, declared: Table | None, renames: Mapping[str, str]) -> TableFit:
    """What a program makes of a stage's table, where columns have other names in it, old to new.

    Raises:
        NotFound: A rename names a column that is not there.
    """
    if (stored is None) != (declared is None):
        change = "keeps state now, and had none" if stored is None else "kept state, and has none now"
        return TableFit(refused=Refused(f"stage {stage!r} {change}", hint=ANOTHER_STAGE))
    if stored is None or declared is None:
        return TableFit()
    try:
        table, columns = evolve(stage, stored, declared, renames)
    except Refused as error:
        return TableFit(refused=error)
    others = (stored.columns, stored.state) != (table.columns, table.state) and not columns
    return TableFit(table, columns, others)


@dataclass(frozen=True, slots=True)
class InputsFit:
    """What a program makes of a stage's inputs, by their declared names."""

    new: tuple[str, ...]
    """What it reads from then on, and did not before."""
    gone: tuple[str, ...]
    """What it reads no more."""
    writers: Mapping[str, tuple[str, str]]
    """Of those that another stage writes now, or nobody of the app, that stage before and now."""


def fit_inputs(head: Manifest, declared: Mapping[str, str]) -> InputsFit:
    """What becomes of a stage's inputs; `declared` has the stage that writes each, empty for a user's topic."""
    known = {name: source.upstream for name, source in head.inputs.items()}
    new, gone = (tuple(sorted(each)) for each in (declared.keys() - known, known.keys() - declared))
    both = {name: (known[name], writer) for name, writer in declared.items() if name in known}
    return InputsFit(new, gone, {name: each for name, each in both.items() if each[0] != each[1]})
