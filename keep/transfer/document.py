"""What an exported folder says of itself, in `export.json`. `docs/leaving.md` has it field by field.

Values that a store holds too are here as they are there, so that nothing of an app is lost on its way: a stage is its
manifest, without the SSTs, which become the files of `tables`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from ...moments.cut.graph import Channel, Cut, channels
from ...moments.cut.in_flight import InFlight
from ...store.versions import checks, column_types, keys, limits
from ...store.versions.checks import Wrong
from ...store.versions.commit import carried, without_snapshots
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import all_ssts, columns_of, without_ssts

DOCUMENT = "export.json"
"""Its name in the folder."""

_TABLE = rf"{keys.NAME}(?:_{keys.NAME})?"
_PART = r"part-[0-9]{5}\.parquet"
FilePath = Annotated[
    str,
    Meta(
        pattern=rf"\A(?:(?:tables|internal)/{_TABLE}|in-flight/{keys.NAME})/{_PART}\Z",
        description="the path of a file in the folder, such as tables/NAME/part-00000.parquet",
    ),
]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="64 hexadecimal digits")]


class File(Struct, frozen=True):
    """One Parquet file of the folder."""

    path: FilePath
    rows: limits.Bytes
    bytes: limits.Bytes
    sha256: Sha256


class TablePart(Struct, frozen=True):
    """Rows of one state partition of a table, sorted by the hash of their key."""

    file: File
    """The columns that users see."""
    internal: File
    """Of the same rows, in the same order, what else the app needs to run on; see `parts`."""
    partition: limits.StatePartition


class ExportedTable(Struct, frozen=True):
    """One table, of a stage or beside it."""

    stage: limits.Name
    """Of whose version it is."""
    key: Annotated[tuple[limits.ColumnName, ...], limits.SOME_COLUMNS]
    columns: dict[limits.ColumnName, limits.TypeName]
    """What users see, the key first: names and Arrow's types."""
    rows: limits.Count
    parts: tuple[TablePart, ...]
    """One at least: of a table without rows, one without rows."""

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(part.file.bytes + part.internal.bytes for part in self.parts)


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
    def cut(self) -> Cut:
        """The moment, as manifests without SSTs."""
        return Cut(self.app, self.stages)

    @property
    def files(self) -> Iterator[File]:
        """All files of the folder but the document."""
        for table in self.tables.values():
            for part in table.parts:
                yield from (part.file, part.internal)
        for each in self.in_flight:
            yield from each.files

    def records(self, reader: Channel, partitions: int) -> tuple[InFlight, tuple[File, ...]]:
        """What a reader of a channel had still to read up to where the next one stood, and the files that have it."""
        sender = self.stages[reader.sender]
        for each in self.in_flight:
            if (each.channel, each.receiver) == (reader.name, reader.receiver):
                return _state(reader, each.after, each.up_to, each.counts, each.schema), each.files
        nothing = _state(reader, sender.version, sender.version, (0,) * partitions, sender.outputs[reader.name].schema)
        return nothing, ()


def _state(reader: Channel, after: int, up_to: int, counts: tuple[int, ...], schema: str) -> InFlight:
    """Where the records lay in Kafka, and by which attempts, says nothing any more."""
    none = (0,) * len(counts)
    rows, attempts = sum(counts), ("export",) if any(counts) else ()
    return InFlight(
        reader.name, "", reader.sender, reader.receiver, none, none, attempts, rows, counts, after, up_to, schema
    )


def of_stage(manifest: Manifest, clock_ms: int) -> Manifest:
    """A stage's version as the document has it; rows that were expired by `clock_ms` are in none of its tables."""
    # Snapshots under way, and what it took, are the source's.
    said = replace(without_snapshots(carried(manifest)), totals=None, clock_ms=max(manifest.clock_ms, clock_ms))
    return without_ssts(said)


@checks.relations.register
def _(value: Export) -> Iterator[Wrong]:
    for name, manifest in value.stages.items():
        at = f"stages[{name!r}]"
        if (manifest.app, manifest.stage) != (value.app, name):
            yield Wrong(f"{at}.stage", f"{manifest.app}/{manifest.stage}", f"{value.app}/{name}")
        if all_ssts(manifest):
            yield Wrong(f"{at}.ssts", len(all_ssts(manifest)), "none: rows are in `tables`")
        for wrong in checks.relations(manifest):
            yield wrong._replace(field=f"{at}.{wrong.field}")
    tables = columns_of(value.stages)
    if value.tables.keys() != tables.keys():
        yield Wrong("tables", sorted(value.tables), f"those of the stages: {', '.join(sorted(tables))}")
        return
    for name, table in value.tables.items():
        yield from _table(f"tables[{name!r}]", name, table, tables[name])
    yield from _channels(value)
    written = {name: stage for stage, manifest in value.stages.items() for name in manifest.outputs}
    for stage, manifest in value.stages.items():
        for name, read in manifest.inputs.items():
            if read.upstream and written.get(name, read.upstream) != read.upstream:
                yield Wrong(
                    f"stages[{stage!r}].inputs[{name!r}].upstream", read.upstream, f"its writer, {written[name]}"
                )
    paths = [each.path for each in value.files]
    if len(set(paths)) < len(paths):
        yield Wrong("tables", max(paths, key=paths.count), "each file once")


def _table(at: str, name: str, found: ExportedTable, table: Table) -> Iterator[Wrong]:
    for number, part in enumerate(found.parts):
        for kind, file in (("tables", part.file), ("internal", part.internal)):
            if not file.path.startswith(f"{kind}/{name}/"):
                yield Wrong(f"{at}.parts[{number}]", file.path, f"a file in {kind}/{name}")
        if part.file.rows != part.internal.rows:
            yield Wrong(f"{at}.parts[{number}].internal.rows", part.internal.rows, f"as many rows, {part.file.rows}")
        if part.partition >= table.partitions:
            yield Wrong(f"{at}.parts[{number}].partition", part.partition, f"less than {table.partitions}")
    if found.rows != (rows := sum(part.file.rows for part in found.parts)):
        yield Wrong(f"{at}.rows", found.rows, f"those of its parts, {rows}")
    if found.key != tuple(column.name for column in table.key):
        yield Wrong(f"{at}.key", found.key, "the key of the stage's table")


def _channels(value: Export) -> Iterator[Wrong]:
    known: Mapping[tuple[str, str], Channel] = {(one.name, one.receiver): one for one in channels(value.cut)}
    seen: set[tuple[str, str]] = set()
    for number, each in enumerate(value.in_flight):
        at = f"in_flight[{number}]"
        edge = known.get((each.channel, each.receiver))
        if edge is None or edge.sender != each.sender or (each.channel, each.receiver) in seen:
            yield Wrong(at, f"{each.sender} to {each.receiver} on {each.channel}", "a channel of the stages, once")
            continue
        seen.add((each.channel, each.receiver))
        sender = value.stages[each.sender]
        partitions = len(sender.outputs[each.channel].ends)
        if len(each.counts) != partitions:
            yield Wrong(f"{at}.counts", each.counts, f"one for each of {partitions} partitions")
        if not each.after <= each.up_to <= sender.version:
            yield Wrong(f"{at}.up_to", each.up_to, f"from after, {each.after}, to v{sender.version} of {each.sender}")
        if sum(each.counts) != sum(file.rows for file in each.files):
            yield Wrong(f"{at}.counts", each.counts, "as many as its files have")
        yield from (
            Wrong(f"{at}.files", file.path, f"files in in-flight/{each.channel}")
            for file in each.files
            if not file.path.startswith(f"in-flight/{each.channel}/")
        )
        try:
            column_types.parse_ddl(each.schema)
        except ValueError:
            yield Wrong(f"{at}.schema", each.schema, "a Spark DDL string")
