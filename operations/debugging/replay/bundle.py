"""Bundle: a zip file with one past batch and everything that its replay needs, to be replayed on any machine.

A bundle has no settings: no secret, store, broker or host, except what the program's file contains.

The zip has an index in JSON, Arrow streams, and the program. The zip is untrusted input: only members with known names
are read, into memory and up to a size limit, and each is validated against the index. Nothing is pickled.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import replace

from ....common.whole_file import atomic_file
from ....errors import Refused
from ....store.sst.schema import PREV, arrow_schema, sst_schema
from ....store.versions import checks, limits
from ....store.versions.manifest import EventTime, Manifest, SideTable, Table
from .inputs import ORIGIN_SCHEMA, InputRecords

FORMAT = 1
"""Format version of bundles that are written, and the newest version that can be read."""
MAX_BYTES = 1 << 30
"""Maximum uncompressed size of a bundle, in bytes: the sum over all members."""
EXISTED = "_there"
"""Boolean column of `Bundle.before`: True if the key had a row before the batch."""
FILE_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.py\Z"

_INDEX = "index.json"
_PROGRAM = "program.py"
_BEFORE = "before.arrow"
_COMMITTED = "committed.arrow"
_MAX_INDEX_BYTES = 1 << 22
_DAY_ONE = (1980, 1, 1, 0, 0, 0)
"""Date of each member, fixed so that equal bundles have equal bytes."""

_Names = Meta(max_length=256, description="at most 256 names")
_FileName = Annotated[str, Meta(pattern=FILE_NAME, description="the name of a Python file")]


class BundledInput(Struct, frozen=True):
    """An input of the stage whose batch is bundled."""

    name: limits.Topic
    topic: limits.Topic
    upstream: limits.NameOrNone


class BundledOutput(Struct, frozen=True):
    """A channel that the stage of the bundled batch writes."""

    name: limits.Topic
    key: Annotated[tuple[limits.ColumnName, ...], limits.SOME_COLUMNS]
    known: bool


class Index(Struct, frozen=True, kw_only=True):
    """Description of the batch and of the bundle's members, stored as JSON."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    time_ms: limits.TimeMs
    program: _FileName
    inputs: Annotated[tuple[BundledInput, ...], _Names]
    outputs: Annotated[tuple[BundledOutput, ...], _Names]
    table: Table | None
    parts: Annotated[dict[limits.Name, Table], _Names] = {}
    """Tables of the parts of lists and maps, by side-table name."""
    seq: limits.Version
    before_clock_ms: limits.AnyTimeMs
    clock_ms: limits.AnyTimeMs
    """Clock at this version by which rows expire, milliseconds. `before_clock_ms` is that of the previous version."""
    before_watermark_ms: limits.EventMs | None
    bound_ms: limits.EventMs | None
    """Upper limit of event times that may advance the watermark, milliseconds since 1970 UTC.

    Rows are late if they are older than `before_watermark_ms`, the watermark of the previous version.
    """
    before_due_ms: limits.AnyTimeMs | None
    next_due_ms: limits.AnyTimeMs | None
    due_ms: limits.AnyTimeMs | None
    """Time up to which rows had fallen due at this version, in milliseconds.

    `before_due_ms` and `next_due_ms` are the values of the previous version.
    """
    wall_ms: limits.EventMs | None = None
    """Wall clock at the start of the batch, if the wall clock decides which rows fall due; else None."""
    some_keys: bool
    """True if the bundle has only some of the keys that the batch wrote. Only these keys are then compared."""

    @property
    def after(self) -> Manifest:
        return Manifest(
            app=self.app,
            stage=self.stage,
            version=self.version,
            epoch=1,
            writer="",
            time_ms=self.time_ms,
            kind="batch",
            table=self.table,
            side_tables={name: SideTable(table) for name, table in self.parts.items()},
            clock_ms=self.clock_ms,
            seq=self.seq,
            event_time=EventTime(
                self.before_watermark_ms, bound_ms=self.bound_ms, due_ms=self.due_ms, wall_ms=self.wall_ms
            ),
        )

    @property
    def before(self) -> Manifest:
        times = EventTime(
            self.before_watermark_ms, bound_ms=self.bound_ms, due_ms=self.before_due_ms, next_due_ms=self.next_due_ms
        )
        return replace(self.after, version=self.version - 1, clock_ms=self.before_clock_ms, seq=0, event_time=times)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A batch with everything that its replay needs.

    Attributes:
        index: Description of the batch and the bundle's members.
        program: Source of the program.
        records: Records that the batch read, by the input's declared name.
        before: Previous row of each key that was written or fell due, with a flag for existing rows (`EXISTED`);
            None without a table.
        committed: Rows that the version wrote, with the columns of SSTs except `_prev_seq`; None without a table.
        sent: Rows that the version sent, by channel, if known.
        parts: Parts of the keys in `before`, and the rows that the version wrote, by side table.
    """

    index: Index
    program: bytes
    records: Mapping[str, InputRecords]
    before: pa.Table | None
    committed: pa.Table | None
    sent: Mapping[str, pa.Table]
    parts: Mapping[str, tuple[pa.Table, pa.Table]] = field(default_factory=dict)


def committed_schema(table: Table) -> pa.Schema:
    schema = sst_schema(table)
    return schema.remove(schema.get_field_index(PREV))


def before_schema(table: Table) -> pa.Schema:
    return pa.schema([*arrow_schema(table.key), *arrow_schema(table.values), pa.field(EXISTED, pa.bool_())])


class _OnlyFormat(Struct):
    format: int


def encode(bundle: Bundle) -> bytes:
    """Return the bytes of the zip; equal bundles have equal bytes.

    Raises:
        Refused: The bundle is larger than `MAX_BYTES`, the limit of `read`.
    """
    index = msgspec.to_builtins(bundle.index)
    members = {_INDEX: msgspec.json.format(msgspec.json.encode({"format": FORMAT, **index})), _PROGRAM: bundle.program}
    for name, table in _member_tables(bundle):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        members[name] = bytes(sink.getvalue())
    size = sum(map(len, members.values()))
    if size > MAX_BYTES:
        raise Refused(
            f"the batch takes {size:,} bytes; expected at most {MAX_BYTES:,} in a bundle",
            hint="name one key: slackwater replay APP/STAGE@VERSION KEY",
        )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name, _DAY_ONE), member, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def write(bundle: Bundle, path: Path) -> None:
    """Write the zip atomically. Raises `Refused` if the file cannot be written."""
    data = encode(bundle)
    with atomic_file(path, "name") as temporary:
        temporary.write_bytes(data)


def read(path: Path) -> Bundle:
    """Read a bundle from a file.

    Raises:
        Refused: The file cannot be read, is not a bundle, is damaged, or has a newer format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_bundle(archive)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        # An encrypted member raises RuntimeError; a damaged entry may raise any of these errors.
        raise Refused(
            f"{path} is not a valid bundle: {error}",
            hint="write it again: slackwater replay APP/STAGE@VERSION --bundle FILE.zip",
        ) from error


def _member_tables(bundle: Bundle) -> Iterator[tuple[str, pa.Table]]:
    for number, bundled_input in enumerate(bundle.index.inputs):
        records = bundle.records[bundled_input.name]
        columns, fields = [*records.rows.columns, *records.origin.columns], [*records.rows.schema, *ORIGIN_SCHEMA]
        yield _input_member(number), pa.Table.from_arrays(columns, schema=pa.schema(fields))
    for number, output in enumerate(bundle.index.outputs):
        if output.known:
            yield _output_member(number), bundle.sent[output.name]
    if bundle.before is not None and bundle.committed is not None:
        yield _BEFORE, bundle.before
        yield _COMMITTED, bundle.committed
    for number, name in enumerate(bundle.index.parts):
        yield from zip(_part_members(number), bundle.parts[name], strict=True)


def _input_member(number: int) -> str:
    return f"inputs/{number}.arrow"


def _output_member(number: int) -> str:
    return f"sent/{number}.arrow"


def _part_members(number: int) -> tuple[str, str]:
    return f"parts/{number}/{_BEFORE}", f"parts/{number}/{_COMMITTED}"


def _read_bundle(archive: zipfile.ZipFile) -> Bundle:
    """Return the bundle in a zip. Raises `ValueError` if the zip is no valid bundle, and zip errors."""
    entries = archive.infolist()
    if (size := sum(entry.file_size for entry in entries)) > MAX_BYTES:
        raise ValueError(f"its members have {size:,} bytes; expected at most {MAX_BYTES:,}")
    index = _read_index(archive)
    outputs = {_output_member(number): output.name for number, output in enumerate(index.outputs) if output.known}
    state = [_BEFORE, _COMMITTED] if index.table is not None else []
    parts = {name: _part_members(number) for number, name in enumerate(index.parts)}
    state += [member for members in parts.values() for member in members]
    expected = {_INDEX, _PROGRAM, *map(_input_member, range(len(index.inputs))), *outputs, *state}
    names = [entry.filename for entry in entries]
    if unknown := sorted(set(names) - expected):
        raise ValueError(f"it has a member {unknown[0][:100]!r}, which bundles do not have")
    if missing := sorted(expected - set(names)):
        raise ValueError(f"it lacks {missing[0]!r}")
    if len(names) > len(expected):
        raise ValueError("it has a member twice")
    records = {
        bundled_input.name: _read_records(archive, number, bundled_input)
        for number, bundled_input in enumerate(index.inputs)
    }
    sent = {name: _read_table(archive, member) for member, name in outputs.items()}
    rows_before = committed = None
    if index.table is not None:
        rows_before = _read_table(archive, _BEFORE, before_schema(index.table))
        committed = _read_table(archive, _COMMITTED, committed_schema(index.table))
    part_rows = {}
    for name, (before, written) in parts.items():
        declared = index.parts[name]
        part_rows[name] = (
            _read_table(archive, before, arrow_schema(declared.columns)),
            _read_table(archive, written, committed_schema(declared)),
        )
    program = _read_member(archive, _PROGRAM, MAX_BYTES)
    return Bundle(index, program, records, rows_before, committed, sent, part_rows)


def _read_index(archive: zipfile.ZipFile) -> Index:
    data = _read_member(archive, _INDEX, _MAX_INDEX_BYTES)
    try:
        format_found = msgspec.json.decode(data, type=_OnlyFormat).format
        if format_found > FORMAT:
            raise Refused(
                f"{archive.filename} is a bundle of format {format_found}; this slackwater reads formats up to "
                f"{FORMAT}",
                hint="a newer slackwater wrote it: upgrade this one",
            )
        index = msgspec.json.decode(data, type=Index) if format_found > 0 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its {_INDEX} is not readable: {error}") from error
    if index is None:
        raise ValueError(f"its format is {format_found}; formats are counted from 1")
    for problem in checks.find_violations(index.after):
        raise ValueError(f"in its {_INDEX}, {problem.field} is {problem.actual!r:.200}; expected {problem.expected}")
    return index


def _read_records(archive: zipfile.ZipFile, number: int, declared: BundledInput) -> InputRecords:
    table = _read_table(archive, _input_member(number))
    at = table.num_columns - len(ORIGIN_SCHEMA)
    if at < 0 or pa.schema(list(table.schema)[at:]) != ORIGIN_SCHEMA or any(c.null_count for c in table.columns[at:]):
        raise ValueError(f"{_input_member(number)!r} lacks the columns with the origin of its records")
    rows, place = table.select(range(at)), table.select(range(at, table.num_columns))
    return InputRecords(declared.topic, declared.upstream, rows, place)


def _read_table(archive: zipfile.ZipFile, name: str, schema: pa.Schema | None = None) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.BufferReader(_read_member(archive, name, MAX_BYTES))) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        # Arrow reports a truncated stream as an I/O error, even if the stream is in memory.
        raise ValueError(f"{name!r} is not an Arrow stream: {error}") from error
    if schema is not None and table.schema != schema:
        raise ValueError(
            f"{name!r} has columns ({_format_columns(table.schema)}); expected ({_format_columns(schema)})"
        )
    fields = zip(table.schema, table.columns, strict=True)
    if any(column.null_count for field, column in fields if not field.nullable):
        raise ValueError(f"{name!r} has nulls in a column that is not nullable")
    return table


def _read_member(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    try:
        with archive.open(name) as member:
            data = member.read(max_bytes + 1)
    except KeyError:
        raise ValueError(f"it lacks {name!r}") from None
    if len(data) > max_bytes:
        raise ValueError(f"{name!r} is larger than {max_bytes:,} bytes")
    return data


def _format_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
