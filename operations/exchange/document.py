"""What an exported folder says of itself, in `export.json`. `docs/leaving.md` has it field by field.

Values that a store holds too are here as they are there, so that nothing of an app is lost on its way: a stage is its
manifest, without the SSTs, which become the files of `tables`.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ...store.versions import limits
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import without_ssts

DOCUMENT = "export.json"
"""Its name in the folder."""


class File(Struct, frozen=True):
    """One Parquet file of the folder."""

    path: str
    """In the folder, such as `tables/NAME/part-00000.parquet`."""
    rows: limits.Bytes
    bytes: limits.Bytes
    sha256: str


class ExportedTable(Struct, frozen=True):
    """One table, of a stage or beside it."""

    stage: limits.Name
    """Of whose version it is."""
    key: tuple[limits.ColumnName, ...]
    columns: dict[limits.ColumnName, limits.TypeName]
    """What users see: names and Arrow's types."""
    rows: limits.Count
    files: tuple[File, ...]
    """One at least: of a table without rows, one without rows."""

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.bytes for file in self.files)


class ExportedChannel(Struct, frozen=True):
    """Records that were on their way from one stage to another.

    Of a channel with several readers, those up to where the next one stood: what is that one's, this one has to read,
    too.
    """

    channel: limits.Name
    sender: limits.Name
    receiver: limits.NameOrNone
    """The stage that had still to read them, as had all that stood before it; empty where nobody read yet."""
    after: limits.Seq
    """They were sent by the sender's versions `after` + 1 to `up_to`."""
    up_to: limits.Seq
    counts: limits.Counts
    """Records by Kafka partition."""
    schema: limits.Text
    """The channel's columns as a Spark DDL string."""
    files: tuple[File, ...]


class Export(Struct, frozen=True):
    """An app at a moment, in a folder."""

    app: limits.Name
    ref: limits.Line
    """How the moment was asked for."""
    time_ms: limits.TimeMs
    """When the newest of its versions was committed, milliseconds since 1970 UTC."""
    exported_ms: limits.TimeMs
    by: limits.Line
    """user@host of whoever exported it."""
    stages: dict[limits.Name, Manifest]
    """The version of each stage: offsets by topic and partition, tables as declared, watermarks, and all else."""
    tables: dict[limits.Name, ExportedTable]
    in_flight: tuple[ExportedChannel, ...] = ()
    starts: dict[limits.Topic, limits.Offsets] = {}
    """Where stages that had not begun are to begin to read users' topics, if `init` had said so."""

    @property
    def files(self) -> Iterator[File]:
        """All files of the folder but the document."""
        for table in self.tables.values():
            yield from table.files
        for channel in self.in_flight:
            yield from channel.files


def of_stage(manifest: Manifest, clock_ms: int) -> Manifest:
    """A stage's version as the document has it; rows that were expired by `clock_ms` are in none of its tables."""
    # Snapshots under way, and what it took, are the source's.
    said = replace(without_snapshots(carried(manifest)), totals=None, clock_ms=max(manifest.clock_ms, clock_ms))
    return without_ssts(said)
