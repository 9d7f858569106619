"""What is found: the commit that made something wrong, and the input record behind it, each with how it was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from ...errors import Refused
from ..cut.graph import Cut
from ..cut.lineage import Lineage, Window
from ..diff.key_changes import KeyChanges
from .predicate import Predicate

MAX_ROWS = 1_000_000
"""Rows of the predicate's result that are held, and told of, when the commit is found."""

Answer = Literal["good", "bad", "skip"]
"""What a predicate, or a person, says of a moment; `skip` is neither."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the predicate."""

    number: int
    """From 1; 0 for one that needed none."""
    total: int
    """How many there will be at most; more only where moments cannot be judged."""
    ref: str
    """A ref to the moment, empty for the one before the app's first commit."""
    cut: Cut
    answer: Answer
    why: str = ""
    """Why it is a skip, in a sentence."""
    took_ms: int = 0
    given: bool = False
    """Whether it was not evaluated, but said before."""
    lacks: bool = False
    """Whether it is a skip because a table or a column was not there."""

    @property
    def bad(self) -> bool:
        """Whether something was wrong there."""
        return self.answer == "bad"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions of a stage that follow one another."""

    stage: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.stage}@v{self.first}" + (f"..v{self.last}" if self.last > self.first else "")


@dataclass(frozen=True, slots=True)
class Flip:
    """A version with which the first wrong row came, or the last one went."""

    ref: str
    version: int
    time_ms: int
    bad: bool
    """Whether it went from good to bad."""
    keys: int
    """How many keys are wrong from it on."""


@dataclass(frozen=True, slots=True)
class Flips:
    """All changes of a predicate over the versions of one table."""

    stage: str
    first: int
    last: int
    """The versions that were looked at: after the first, which the counting begins with, up to the last."""
    flips: tuple[Flip, ...]
    counts: tuple[tuple[int, int], ...]
    """How many keys are wrong, by version: where it changed, and at the first version."""
    rows: int
    """How many rows were looked at."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first commit of the line at which the predicate says that something is wrong.

    Or, with `candidates`, that it is one of several: then what is said of the commit is said of the last of them.
    """

    app: str
    predicate: Predicate
    stage: str
    """The stage whose commit made it bad."""
    good: Cut
    """The prefix of the line right before that commit; with candidates, the last moment that is known to be good."""
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
    keys: KeyChanges | None
    """The keys that turned bad, None for a stage without a table, and where candidates leave open which they are."""
    steps: tuple[Evaluation, ...]
    """All answers, in their order; after those that found the commit come those that looked for other changes."""
    evaluations: int
    """How many moments at which tables had rows were evaluated to find the commit."""
    candidates: tuple[VersionRange, ...] = ()
    """When skips, or versions that are gone, leave it open: the versions, of all stages, of which one is the first bad
    one. Empty when the commit is certain."""
    thinned: bool = False
    """Whether it is because garbage collection took versions between `good` and `bad` that there are candidates."""
    non_monotone: tuple[Evaluation, ...] = ()
    """Evaluations against the order: good after the first bad moment, or bad before the last good one. Empty as
    far as could be seen when the history went from good to bad once; otherwise the verdict is one of several
    changes."""
    resolved: Mapping[str, Cut] = field(default_factory=dict)
    """What the refs to both ends resolve to, where they were given."""
    begins: str = ""
    """The ref from which on every version was there to be searched, where older history was thinned out."""
    flips: Flips | None = None
    """All changes over the same stretch, where they were counted; None where that is not cheap, or cannot be."""
    seen_all: bool = False
    """Whether every moment between the two ends was evaluated, or has the rows of one that was."""

    @property
    def bad_before(self) -> str:
        """A ref to a bad moment that is known to come before the last good one; empty for none."""
        if self.flips is not None:
            earlier = [flip.ref for flip in self.flips.flips if flip.bad and flip.version < self.bad_version]
        else:
            bad = [step for step in self.non_monotone if step.bad]
            earlier = [step.ref for step in sorted(bad, key=lambda step: sum(step.cut.versions.values()))]
        return next(iter(earlier), "")

    @property
    def looked(self) -> bool:
        """Whether it is known that nothing was bad before; else that is assumed, as a binary search does."""
        return not self.bad_before and (self.flips is not None or self.seen_all)

    @property
    def where(self) -> str:
        """SQL that returns rows when something is wrong; empty where code decides that."""
        return self.predicate.sql


class CannotProve(Refused):
    """A replay does not show which record it was; the message says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a record is in Kafka: `topic[partition]@offset`, and of a repartition topic the row in the message."""

    topic: str
    partition: int
    offset: int
    row: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}{'' if self.row is None else f'+{self.row}'}"


@dataclass(frozen=True, slots=True)
class Hop:
    """The record that was found among those which one version of a stage read."""

    stage: str
    version: int
    record: Address
    records: int
    """How many records the version read."""
    candidates: int
    """How many of them could have to do with it."""
    replays: int
    """Of how many choices of them it was seen what the stage makes of them."""
    alone: bool
    """Whether it is bad with this record alone; else only with some of those that came before it."""
    needs: int | None = None
    """With how many of those it is bad, of which none can be left out; None where that is not known."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A record of a user's topic as Kafka has it."""

    address: Address
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class NoRecord:
    """A batch that is bad with none of its records: time or a watermark made rows go, or emitted them."""

    stage: str
    """The stage whose batch it is: that of the bad commit, or one upstream."""
    version: int
    expired: pa.Table
    """The rows of its table that expired with the batch: key columns, and `time`, when each did."""
    fell_due: pa.Table
    """The rows that fell due with it (windows that ended, timers, waiting rows of a join): the same columns."""
    clock_ms: tuple[int, int]
    """The clock by which rows expire, before the batch and with it."""
    due_ms: tuple[int | None, int | None]
    """Up to when rows had fallen due before the batch, and with it; None for never."""
    by: Literal["clock", "watermark"] = "clock"
    """What passes the time at which rows fall due or expire: the wall clock, or event time."""
    keys: KeyChanges | None = None
    """The keys of the bad commit's table that are other ones with the batch and without its records; None without."""


@dataclass(frozen=True, slots=True)
class Guilty:
    """The way from a bad commit to the record behind it, as far as it could be proved."""

    hops: tuple[Hop, ...]
    """From the commit upwards, one for each stage; none where nothing could be proved."""
    message: SourceMessage | None
    """The record of the user's own topic at the end of the way; None where it ends before."""
    reason: str
    """Why the way ends before; empty where it does not."""
    windows: tuple[Window, ...]
    """Where the way ends: the smallest part of the input that is proved to hold it."""
    keys: KeyChanges | None
    """What the record did to the table of the bad commit: its keys before and after it."""
    others: int | None = None
    """How many more records of the commit make the predicate true by themselves; None where that is not known."""
    of_key: int = 0
    """How many records of the batch reach the key that was asked about, where one was. Of several, this is the last
    that changed its row; of a batch of a query of Spark's, whose records nobody replays, the one whose numbers come
    nearest to what changed. 0 where it is not known, and where no key was asked about."""
    proved: bool = False
    """Whether replays prove the record: of all prefixes of the records in the app's order, the shortest bad one ends
    with it. Else it is a guess, or none is named."""
    tied: tuple[Address, ...] = ()
    """Other records that the app's order does not tell from it: of other partitions, with the same time. Each of them,
    were it the later one, would be the first with which it is bad."""
    records: pa.Table | None = None
    """The bad records of the batch in the app's order: `topic`, `partition`, `offset`, `time`, `key`, and `alone`, for
    those that are bad by themselves; the others are bad together. None where they are not known."""
    is_complete: bool = False
    """Whether `records` has all records that are bad by themselves."""
    no_record: NoRecord | None = None
    """What made it bad with none of its records; None where a record did, or it is not known."""

    @property
    def replays(self) -> int:
        """How many choices of records were replayed."""
        return sum(hop.replays for hop in self.hops)
