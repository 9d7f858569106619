"""The document of an exported folder, `export.json`. `docs/leaving.md` describes each field.

Values that a store also holds have the same form as in the store, so that an export loses nothing: a stage is its
manifest without the SSTs, whose rows are in the files of `tables`.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...store.versions import limits
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import without_ssts

DOCUMENT = "export.json"
"""File name of the document."""


class File(Struct, frozen=True):
    """One Parquet file of the folder."""

    path: str
    """Path within the folder, such as `tables/NAME/part-00000.parquet`."""
    rows: limits.Bytes
    bytes: limits.Bytes
    sha256: str


class ExportedTable(Struct, frozen=True):
    """One exported table: a stage's own or a side table."""

    stage: limits.Name
    """The stage whose version has the table."""
    key: tuple[limits.ColumnName, ...]
    columns: dict[limits.ColumnName, limits.TypeName]
    """The columns that users see: Arrow types by name."""
    rows: limits.Count
    files: tuple[File, ...]
    """At least one: a table without rows has one file without rows."""

    @property
    def bytes(self) -> int:
        """Total size of the table's files."""
        return sum(file.bytes for file in self.files)


class ExportedChannel(Struct, frozen=True):
    """Records in flight from one stage to another.

    A record of a channel with several readers is listed once, for the most advanced reader that has not consumed it.
    Readers further behind have not consumed it either.
    """

    channel: limits.Name
    sender: limits.Name
    receiver: limits.NameOrNone
    """The stage that has not consumed the records; empty if no stage has read the channel yet."""
    after: limits.Seq
    """The sender's versions `after` + 1 to `up_to` sent the records."""
    up_to: limits.Seq
    counts: limits.Counts
    """Number of records by Kafka partition."""
    schema: limits.Text
    """The channel's columns as a Spark DDL string."""
    files: tuple[File, ...]


class Export(Struct, frozen=True):
    """The document of an app that was exported at a moment."""

    app: limits.Name
    ref: limits.Line
    """The ref as the user typed it."""
    time_ms: limits.TimeMs
    """Commit time of the newest version, milliseconds since 1970 UTC."""
    exported_ms: limits.TimeMs
    by: limits.Line
    """user@host of the caller."""
    stages: dict[limits.Name, Manifest]
    """The version of each stage: offsets by topic and partition, declared tables, watermarks and the rest."""
    tables: dict[limits.Name, ExportedTable]
    in_flight: tuple[ExportedChannel, ...] = ()
    starts: dict[limits.Topic, limits.Offsets] = {}
    """Offsets by user topic at which stages without versions begin to read, if `init` set them."""

    @property
    def files(self) -> Iterator[File]:
        """All files of the folder except the document."""
        for table in self.tables.values():
            yield from table.files
        for channel in self.in_flight:
            yield from channel.files


def of_stage(manifest: Manifest, clock_ms: int) -> Manifest:
    """Return a stage's version as the document stores it. Rows expired at `clock_ms` are in none of its tables."""
    # Running snapshots and request totals belong to the source app.
    exported = replace(without_snapshots(carried(manifest)), totals=None, clock_ms=max(manifest.clock_ms, clock_ms))
    return without_ssts(exported)
