"""Results of bisect: the first bad commit, and the input record that caused it, with the evidence for both."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from ...errors import Refused, Usage
from ...store.versions import keys
from ..cut.graph import Cut
from ..cut.lineage import Lineage, Window
from ..diff.key_changes import KeyChanges
from .predicate import Predicate

MAX_ROWS = 1_000_000
_LOCATION = re.compile(rf"({keys.TOPIC})\[([0-9]{{1,6}})\]@([0-9]{{1,19}})(?:\+([0-9]{{1,9}}))?")

Answer = Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation of the predicate at one moment."""

    number: int
    total: int
    ref: str
    cut: Cut
    answer: Answer
    why: str = ""
    took_ms: int = 0
    is_given: bool = False
    """True for a known answer that was passed to this search."""
    is_column_missing: bool = False

    @property
    def bad(self) -> bool:
        return self.answer == "bad"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Consecutive versions of a stage."""

    stage: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.stage}@v{self.first}" + (f"..v{self.last}" if self.last > self.first else "")


@dataclass(frozen=True, slots=True)
class Flip:
    """Version at which a predicate turned bad (rows became wrong) or good (no row is wrong any more)."""

    ref: str
    version: int
    time_ms: int
    bad: bool
    """True if the predicate turned from good to bad."""
    keys: int


@dataclass(frozen=True, slots=True)
class Flips:
    """All versions of one table's stage at which a predicate turned bad or good."""

    stage: str
    first: int
    last: int
    """Last scanned version. The scan starts after `first`."""
    flips: tuple[Flip, ...]
    counts: tuple[tuple[int, int], ...]
    """Pairs of a version and its number of wrong keys: for `first`, and for every version that changed the number."""
    rows: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """First bad commit of the line.

    If there are `candidates`, any candidate may be the first bad commit, and the fields describe the last candidate.
    """

    app: str
    predicate: Predicate
    stage: str
    good: Cut
    """Prefix of the line right before the bad commit. With `candidates`, the last moment known to be good."""
    bad: Cut
    good_ref: str
    """Ref to the last good moment, which may be a commit of any stage; empty before the first commit."""
    bad_ref: str
    good_version: int
    bad_version: int
    good_time_ms: int
    bad_time_ms: int
    lineage: Lineage
    rows: pa.Table
    more_rows: bool
    keys: KeyChanges | None
    steps: tuple[Evaluation, ...]
    evaluations: int
    """Number of evaluations in the search. Moments at which all tables are empty are not counted."""
    candidates: tuple[VersionRange, ...] = ()
    """Versions of all stages that may be the first bad commit; empty if the commit is certain.

    There are candidates if moments were skipped or collected.
    """
    thinned: bool = False
    """True if there are candidates because garbage collection removed versions between `good` and `bad`."""
    non_monotone: tuple[Evaluation, ...] = ()
    """Evaluations that contradict a single change: good after the bad commit, or bad before the last good moment.

    If not empty, the history changed more than once, and the verdict is one of these changes.
    """
    resolved: Mapping[str, Cut] = field(default_factory=dict)
    gapless_start_ref: str = ""
    """Ref of the moment since which all versions exist, if retention removed versions in the range; else empty."""
    flips: Flips | None = None
    is_exhaustive: bool = False
    """True if every moment between the ends was evaluated, or has the same rows as an evaluated moment."""

    @property
    def earlier_bad_ref(self) -> str:
        """Ref of a bad moment before the last good moment; empty if none is known."""
        if self.flips is not None:
            earlier = [flip.ref for flip in self.flips.flips if flip.bad and flip.version < self.bad_version]
        else:
            bad = [step for step in self.non_monotone if step.bad]
            earlier = [step.ref for step in sorted(bad, key=lambda step: sum(step.cut.versions.values()))]
        return next(iter(earlier), "")

    @property
    def is_first_known(self) -> bool:
        """True if all earlier moments are known to be good; False if a binary search only assumed it."""
        return not self.earlier_bad_ref and (self.flips is not None or self.is_exhaustive)

    @property
    def where(self) -> str:
        return self.predicate.sql


class UnprovedRecord(Refused):
    """No record can be proved to be the cause."""


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Location of a Kafka record: `topic[partition]@offset`, plus the row within a message of a repartition topic."""

    topic: str
    partition: int
    offset: int
    row: int | None = None
    place: str = field(default="", compare=False)
    """File and line, or row, of a record of a source beside Kafka; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}{'' if self.row is None else f'+{self.row}'}"

    @classmethod
    def parse(cls, text: str) -> "RecordLocation":
        """Parse a location in the format of `str()`. Raises `Usage`."""
        if (match := _LOCATION.fullmatch(text)) is None:
            raise Usage(
                f"{text!r} is not the location of a record; expected TOPIC[PARTITION]@OFFSET",
                hint="as bisect prints it: 'flights[1]@49625'; quote it, because of the brackets",
            )
        topic, partition, offset, row = match.groups()
        return cls(topic, int(partition), int(offset), int(row) if row else None)


@dataclass(frozen=True, slots=True)
class Hop:
    """Step of a `RecordPath`: the record that caused the bad result, among the records that one version read."""

    stage: str
    version: int
    record: RecordLocation
    records: int
    candidates: int
    """Number of records, among those that the version read, that may be the cause."""
    replays: int
    alone: bool
    """True if the record alone makes the result bad; False if earlier records are needed as well."""
    needs: int | None = None
    """Smallest number of earlier records that, together with this record, make the result bad; None if unknown."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Record of a user's topic as stored in Kafka."""

    location: RecordLocation
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class RecordlessBatch:
    """Bad batch without a record at fault: the clock or a watermark made rows disappear or be emitted."""

    stage: str
    version: int
    expired: pa.Table
    """Rows of the stage's table that expired with the batch: key columns, and `time` of expiry."""
    fell_due: pa.Table
    """Rows that fell due with the batch: ended windows, timers, waiting join rows. Key columns, and due `time`."""
    clock_ms: tuple[int, int]
    """Time by which rows expire, before and after the batch."""
    due_ms: tuple[int | None, int | None]
    """Time up to which rows had fallen due, before and after the batch; None if none had."""
    by: Literal["clock", "watermark"] = "clock"
    keys: KeyChanges | None = None


BAD_RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("row", pa.int32()),
        ("time", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("alone", pa.bool_()),
    ]
)
"""Schema of `RecordPath.records`.

`row` is null for a message. `alone` is True for records that are bad by themselves, and False for records that are bad
only in combination.
"""


@dataclass(frozen=True, slots=True)
class RecordPath:
    """Path from a bad commit upstream to the record that caused it, as far as it could be proved."""

    hops: tuple[Hop, ...]
    """Steps from the commit upstream, one for each stage; empty if nothing could be proved."""
    source_record: SourceRecord | None
    reason: str
    windows: tuple[Window, ...]
    keys: KeyChanges | None
    others: int | None = None
    """Number of other records of the commit that make the result bad by themselves; None if unknown."""
    of_key: int = 0
    """Number of records of the batch that reach the requested key; 0 if unknown, or without a requested key.

    If there are several, the path names the last record that changed the key's row. A batch of an attached Spark query
    cannot be replayed: there the path names the record with the numeric value nearest to the change.
    """
    proved: bool = False
    """True if replays prove the record: the app's input is good without this record, and bad with it."""
    tied: tuple[RecordLocation, ...] = ()
    """Records of other partitions with an equal time; any of them may be the first bad record instead."""
    records: pa.Table | None = None
    """Bad records of the batch, in the order in which the app processes them (`BAD_RECORDS`); None if unknown."""
    is_complete: bool = False
    """True if `records` contains all records that are bad by themselves."""
    recordless_batch: RecordlessBatch | None = None

    @property
    def replays(self) -> int:
        return sum(hop.replays for hop in self.hops)
