"""What bisect finds: the commit, the moments on both its sides, and how it was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from ..cut.graph import Cut
from ..cut.lineage import Lineage
from .changed_keys import ChangedKeys
from .predicate import Predicate

MAX_ROWS = 1_000_000
"""Rows of the predicate's result that are held, and told of, when the commit is found."""


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluation of the predicate."""

    number: int
    """From 1."""
    total: int
    """How many there will be, as far as one can tell."""
    ref: str
    """A ref to the moment, empty for the one before the app's first commit."""
    cut: Cut
    bad: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first commit of the line at which the predicate says that something is wrong."""

    app: str
    predicate: Predicate
    stage: str
    """The stage whose commit made it bad."""
    good: Cut
    """The prefix of the line right before that commit."""
    bad: Cut
    """The prefix that ends with it."""
    good_ref: str
    """A ref to the last good moment: the commit right before on the line, of whichever stage. Empty when there is
    none."""
    bad_ref: str
    """A ref to the first bad moment: the commit."""
    good_version: int
    """The version of `stage` before; 0 when it had none."""
    bad_version: int
    good_time_ms: int
    """When the commit that `good_ref` names was made; 0 when there is none."""
    bad_time_ms: int
    lineage: Lineage
    """The input windows behind `bad_version`."""
    rows: pa.Table
    """What the predicate returns at the first bad moment, up to `MAX_ROWS` rows."""
    more_rows: bool
    """Whether it returns more than these."""
    keys: ChangedKeys | None
    """The keys that turned bad, None for a stage without a table."""
    steps: tuple[Step, ...]
    """All evaluations, in their order."""
    non_monotone: tuple[Step, ...] = ()
    """Evaluations against the order: good after the first bad moment, or bad before the last good one. Empty as
    far as could be seen when the history went from good to bad once; otherwise the verdict is one of several
    changes."""
    asked: Mapping[str, Cut] = field(default_factory=dict)
    """What the refs to both ends resolve to, where they were given."""
    begins: str = ""
    """The ref from which on was searched, where older history was thinned out."""

    @property
    def where(self) -> str:
        """SQL that returns rows when something is wrong; empty where code decides that."""
        return self.predicate.sql

    @property
    def evaluations(self) -> int:
        """How many times the predicate was evaluated."""
        return len(self.steps)
