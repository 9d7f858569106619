"""Results of `why` and `impact`: the records that made a row, and the rows that one record reached."""

from dataclasses import dataclass
from typing import Literal

from .verdict import RecordLocation, SourceRecord


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Record that a version read and that went into a row."""

    location: RecordLocation
    time_ms: int
    sent_by: str
    """Version that sent the record, as `STAGE@vN`; empty for a record of a user's topic."""


@dataclass(frozen=True, slots=True)
class RowVersion:
    """Version that wrote a row, or that sent rows for it, with the records that the version read for the row."""

    stage: str
    version: int
    time_ms: int
    key: dict[str, object] | None
    """Key of the row in the stage's table; None for a stage without a table."""
    before: dict[str, object] | None
    after: dict[str, object] | None
    """Values of the row before and after the version; None without a row."""
    records: tuple[ReadRecord, ...]
    unknown: str = ""
    """Reason why `records` may lack some records of the row or have too many; empty if `records` is exact."""

    @property
    def name(self) -> str:
        return f"{self.stage}@v{self.version}"


@dataclass(frozen=True, slots=True)
class MinimalRecords:
    """Set of source records that is sufficient to make a row."""

    records: tuple[RecordLocation, ...]
    is_smallest: bool
    """True if replays prove that no smaller set makes the row."""
    is_minimal: bool
    """True if replays prove that each record in the set is needed."""
    replays: int


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """Records that made a row."""

    app: str
    table: str
    key: dict[str, object]
    version: int
    """Version of the table at which the row is explained."""
    row: dict[str, object] | None
    """Values of the row; None if there is no row. In that case, the removal of the row is explained."""
    versions: tuple[RowVersion, ...]
    """Versions that wrote the row, newest first, followed by upstream versions."""
    sources: tuple[SourceRecord, ...]
    """Records of users' topics that went into the row, by topic, partition and offset. Payloads are optional."""
    minimal: MinimalRecords | None = None
    unknown: str = ""
    """Reason why no smallest set is known, if the caller requested one; else empty."""

    @property
    def is_whole(self) -> bool:
        """True if the sources are exactly the records that went into the row."""
        return not any(version.unknown for version in self.versions)


@dataclass(frozen=True, slots=True)
class ReachedRow:
    """Row of a table that a record reached."""

    stage: str
    key: dict[str, object]
    version: int
    """First version that wrote the row with the record."""
    until: int | None
    """Version that removed the row; later rows of the key do not depend on the record.

    None if no version removed it.
    """
    before: dict[str, object] | None
    after: dict[str, object] | None
    """Values of the row before and after `version`; None without a row."""


@dataclass(frozen=True, slots=True)
class ReachedOutput:
    """Rows that a record reached and that a version sent to a channel or to a sink."""

    stage: str
    version: int
    output: str
    kind: Literal["channel", "topic", "function", "table"]
    """`channel` for a repartition topic; the other kinds are sinks."""
    rows: tuple[dict[str, object], ...]
    readers: tuple[str, ...] = ()
    """Versions that read the rows, as `STAGE@vN`. Stages that have not read them yet are missing."""
    is_published: bool | None = None
    """True if a sink's rows were published; None for a channel."""


@dataclass(frozen=True, slots=True)
class ReachedCopy:
    """Snapshot or clone with tables or in-flight records that a record reached."""

    kind: Literal["snapshot", "clone"]
    name: str
    stages: tuple[str, ...]
    """Stages whose state the record reached, as `STAGE@vN`."""
    in_flight: tuple[str, ...] = ()
    """Channels with in-flight records that the record reached."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Version that read a record but made no row from the record, which was rejected, late, or filtered."""

    stage: str
    version: int
    kind: Literal["rejected", "late", "filtered"]
    detail: str


@dataclass(frozen=True, slots=True)
class Impact:
    """Rows, outputs and copies that a record reached."""

    app: str
    record: RecordLocation
    readers: tuple[str, ...]
    """Versions that read the record, as `STAGE@vN`."""
    not_taken: tuple[NotTaken, ...]
    rows: tuple[ReachedRow, ...]
    outputs: tuple[ReachedOutput, ...]
    copies: tuple[ReachedCopy, ...]
    unknown: tuple[str, ...]
    """Reasons why the record may have reached more rows; empty if the other fields are complete."""
