"""Results of `why` and `impact`: the records that made a row, and what one record reached."""

from dataclasses import dataclass
from typing import Literal

from .verdict import RecordLocation, SourceRecord


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Record that a version read, and that went into a row."""

    location: RecordLocation
    time_ms: int
    sent_by: str
    """Version that sent the record, as `STAGE@vN`; empty for a record of a user's topic."""


@dataclass(frozen=True, slots=True)
class RowVersion:
    """Version that wrote a row, or that sent rows which went into it; with the records that it read for that."""

    stage: str
    version: int
    time_ms: int
    key: dict[str, object] | None
    """Key of the row in the stage's table; None for a stage without a table."""
    before: dict[str, object] | None
    after: dict[str, object] | None
    """Values before and after the version; None without a row."""
    records: tuple[ReadRecord, ...]
    unknown: str = ""
    """Reason why further records may have gone into the row, or why not all these have; empty if they are exact."""

    @property
    def name(self) -> str:
        return f"{self.stage}@v{self.version}"


@dataclass(frozen=True, slots=True)
class MinimalRecords:
    """Set of source records that gives a row by itself."""

    records: tuple[RecordLocation, ...]
    is_smallest: bool
    """True if replays of all smaller sets prove that none of them gives the row."""
    is_minimal: bool
    """True if replays prove that none of the records can be left out."""
    replays: int


@dataclass(frozen=True, slots=True)
class RowExplanation:
    """Records that made a row."""

    app: str
    table: str
    key: dict[str, object]
    version: int
    """Version of the table that shows the row."""
    row: dict[str, object] | None
    """Values of the row; None if there is no row: then the explanation is that of its removal."""
    versions: tuple[RowVersion, ...]
    """Versions that wrote the row, newest first, and then versions upstream."""
    sources: tuple[SourceRecord, ...]
    """Records of users' topics that went into the row, by topic, partition and offset. Empty payloads unless read."""
    minimal: MinimalRecords | None = None
    unknown: str = ""
    """Reason why no smallest set is known, if it was asked for."""

    @property
    def is_whole(self) -> bool:
        """True if the sources are exactly the records that went into the row."""
        return not any(version.unknown for version in self.versions)


@dataclass(frozen=True, slots=True)
class ReachedRow:
    """Row of a table into which a record went."""

    stage: str
    key: dict[str, object]
    version: int
    """First version whose row the record went into."""
    until: int | None
    """Version that removed this row, so that later rows of the key are without the record; None if none has."""
    before: dict[str, object] | None
    after: dict[str, object] | None
    """Values before and after `version`; None without a row."""


@dataclass(frozen=True, slots=True)
class ReachedOutput:
    """Rows that a version sent to a channel or to a sink, and into which a record went."""

    stage: str
    version: int
    output: str
    kind: Literal["channel", "topic", "function"]
    """`channel` for a repartition topic; `topic` and `function` for sinks."""
    rows: tuple[dict[str, object], ...]
    readers: tuple[str, ...] = ()
    """Versions that read the rows, as `STAGE@vN`; for a channel that a stage has yet to read, without that stage."""
    is_published: bool | None = None
    """True if a sink's rows were published; None for a channel."""


@dataclass(frozen=True, slots=True)
class ReachedCopy:
    """Snapshot or clone whose tables or in-flight records have what a record reached."""

    kind: Literal["snapshot", "clone"]
    name: str
    stages: tuple[str, ...]
    """Stages whose state has it, as `STAGE@vN`."""
    in_flight: tuple[str, ...] = ()
    """Channels that hold it in flight."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Version that read a record and made no row of it: the record was rejected, late, or filtered."""

    stage: str
    version: int
    kind: Literal["rejected", "late", "filtered"]
    detail: str


@dataclass(frozen=True, slots=True)
class Impact:
    """What a record reached."""

    app: str
    record: RecordLocation
    readers: tuple[str, ...]
    """Versions that read the record, as `STAGE@vN`."""
    not_taken: tuple[NotTaken, ...]
    rows: tuple[ReachedRow, ...]
    outputs: tuple[ReachedOutput, ...]
    copies: tuple[ReachedCopy, ...]
    unknown: tuple[str, ...]
    """Reasons why further rows may be reached; empty if the rest is exact."""
