"""A case that runs anywhere: one batch, with all that a replay of it needs, as values and as a file.

It has nothing of the settings: no secret, no store, no broker, no host. What the program's file says, it says.

The file is a zip of an index in JSON, Arrow streams, and the program. What lies in a zip may be anybody's: nothing is
taken out of it but members of known names, into memory, of a bounded size, and each is held to what the index says. It
holds no pickle.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct
from msgspec.structs import replace

from ....common.whole_file import whole_file
from ....errors import Refused
from ....store.sst.schema import PREV, arrow_schema, sst_schema
from ....store.versions import checks, limits
from ....store.versions.manifest import EventTime, Manifest, Table
from .inputs import PLACE, Records

FORMAT = 1
"""The format that this program writes, and the newest that it reads."""
MAX_BYTES = 1 << 30
"""Of all members together, as they are in memory."""
THERE = "_there"
"""Column of the rows before: whether the key had one."""
FILE_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.py\Z"
"""What the program's file may be called in a bundle."""

_INDEX = "index.json"
_PROGRAM = "program.py"
_BEFORE = "before.arrow"
_COMMITTED = "committed.arrow"
_MAX_INDEX_BYTES = 1 << 22
_DAY_ONE = (1980, 1, 1, 0, 0, 0)
"""The date of each member, so that equal bundles have equal bytes."""

_Names = Meta(max_length=256, description="at most 256 names")
_FileName = Annotated[str, Meta(pattern=FILE_NAME, description="the name of a Python file")]


class BundledInput(Struct, frozen=True):
    """An input of the stage."""

    name: limits.Topic
    topic: limits.Topic
    upstream: limits.NameOrNone
    """The stage that wrote it; empty for a user's topic."""


class BundledOutput(Struct, frozen=True):
    """A channel that the stage writes."""

    name: limits.Topic
    key: Annotated[tuple[limits.ColumnName, ...], limits.SOME_COLUMNS]
    known: bool
    """Whether the bundle has what was sent on it."""


class Index(Struct, frozen=True, kw_only=True):
    """What the members of a bundle are."""

    app: limits.Name
    stage: limits.Name
    version: limits.Version
    time_ms: limits.TimeMs
    """When the version was committed."""
    program: _FileName
    """What the program's file is called."""
    inputs: Annotated[tuple[BundledInput, ...], _Names]
    outputs: Annotated[tuple[BundledOutput, ...], _Names]
    table: Table | None
    """As the version had it; None for a stage without one."""
    seq: limits.Version
    """`_seq` of the rows that the version wrote."""
    before_clock_ms: limits.SpanMs
    clock_ms: limits.SpanMs
    """By which rows of the table expire, at the version before it and at the version."""
    before_watermark_ms: limits.EventMs | None
    bound_ms: limits.EventMs | None
    """By which rows are late: the watermark of the version before it, and what was too far ahead of the clock."""
    before_due_ms: limits.SpanMs | None
    next_due_ms: limits.SpanMs | None
    due_ms: limits.SpanMs | None
    """What fell due: what the version before it says of that, and up to when rows had at the version."""
    wall_ms: limits.EventMs | None = None
    """The wall clock at the batch's start, where rows of the table fall due."""
    some_keys: bool
    """Whether it is a case of some of the keys that the batch wrote: the others are left out on both sides."""

    @property
    def after(self) -> Manifest:
        """The version, without its SSTs."""
        return Manifest(
            app=self.app,
            stage=self.stage,
            version=self.version,
            epoch=1,
            writer="",
            time_ms=self.time_ms,
            kind="batch",
            table=self.table,
            clock_ms=self.clock_ms,
            seq=self.seq,
            event_time=EventTime(
                self.before_watermark_ms, bound_ms=self.bound_ms, due_ms=self.due_ms, wall_ms=self.wall_ms
            ),
        )

    @property
    def before(self) -> Manifest:
        """The version before it, without its SSTs."""
        times = EventTime(
            self.before_watermark_ms, bound_ms=self.bound_ms, due_ms=self.before_due_ms, next_due_ms=self.next_due_ms
        )
        return replace(self.after, version=self.version - 1, clock_ms=self.before_clock_ms, seq=0, event_time=times)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One batch.

    Attributes:
        index: What it is.
        program: The source of the program.
        records: What the batch read, by the input's declared name.
        before: The keys that were touched or fell due, the value columns of their rows before the batch as SSTs have
            them, and whether there was one (`THERE`); None without a table.
        committed: The rows that the version wrote, as SSTs have them but for `_prev_seq`; None without a table.
        sent: What it sent, by channel, where that is known.
    """

    index: Index
    program: bytes
    records: Mapping[str, Records]
    before: pa.Table | None
    committed: pa.Table | None
    sent: Mapping[str, pa.Table]


def committed_schema(table: Table) -> pa.Schema:
    """The columns of `Bundle.committed`."""
    schema = sst_schema(table)
    return schema.remove(schema.get_field_index(PREV))


def before_schema(table: Table) -> pa.Schema:
    """The columns of `Bundle.before`."""
    return pa.schema([*arrow_schema(table.key), *arrow_schema(table.values), pa.field(THERE, pa.bool_())])


class _OnlyFormat(Struct):
    format: int


def encode(bundle: Bundle) -> bytes:
    """The bytes of the zip. Equal bundles give equal bytes.

    Raises:
        Refused: It is larger than what is read again.
    """
    index = msgspec.to_builtins(bundle.index)
    members = {_INDEX: msgspec.json.format(msgspec.json.encode({"format": FORMAT, **index})), _PROGRAM: bundle.program}
    for name, table in _tables(bundle):
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
    """Write the zip, whole or not at all. Raises `Refused` where that cannot be."""
    data = encode(bundle)
    with whole_file(path, "name") as temporary:
        temporary.write_bytes(data)


def read(path: Path) -> Bundle:
    """The bundle in a file.

    Raises:
        Refused: It is none, or one of a newer format, or damaged; or it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _bundle(archive)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        # An encrypted member is a RuntimeError, a damaged entry may be any of these.
        raise Refused(
            f"{path} is no bundle that can be replayed: {error}",
            hint="write it again: slackwater replay APP/STAGE@VERSION --bundle FILE.zip",
        ) from error


def _tables(bundle: Bundle) -> Iterator[tuple[str, pa.Table]]:
    """The tables, by their members' names."""
    for number, each in enumerate(bundle.index.inputs):
        records = bundle.records[each.name]
        columns, fields = [*records.rows.columns, *records.place.columns], [*records.rows.schema, *PLACE]
        yield _input(number), pa.Table.from_arrays(columns, schema=pa.schema(fields))
    for number, output in enumerate(bundle.index.outputs):
        if output.known:
            yield _output(number), bundle.sent[output.name]
    if bundle.before is not None and bundle.committed is not None:
        yield _BEFORE, bundle.before
        yield _COMMITTED, bundle.committed


def _input(number: int) -> str:
    return f"inputs/{number}.arrow"


def _output(number: int) -> str:
    return f"sent/{number}.arrow"


def _bundle(archive: zipfile.ZipFile) -> Bundle:
    """What the members of a zip are. Raises `ValueError` where they are no bundle, and as reading a zip does."""
    entries = archive.infolist()
    if (size := sum(entry.file_size for entry in entries)) > MAX_BYTES:
        raise ValueError(f"its members have {size:,} bytes; expected at most {MAX_BYTES:,}")
    index = _index(archive)
    outputs = {_output(number): each.name for number, each in enumerate(index.outputs) if each.known}
    state = (_BEFORE, _COMMITTED) if index.table is not None else ()
    expected = {_INDEX, _PROGRAM, *map(_input, range(len(index.inputs))), *outputs, *state}
    names = [entry.filename for entry in entries]
    if strange := sorted(set(names) - expected):
        raise ValueError(f"it has a member {strange[0][:100]!r}, which bundles do not have")
    if missing := sorted(expected - set(names)):
        raise ValueError(f"it lacks {missing[0]!r}")
    if len(names) > len(expected):
        raise ValueError("it has a member twice")
    records = {each.name: _records(archive, number, each) for number, each in enumerate(index.inputs)}
    sent = {name: _table(archive, member) for member, name in outputs.items()}
    before = committed = None
    if index.table is not None:
        before = _table(archive, _BEFORE, before_schema(index.table))
        committed = _table(archive, _COMMITTED, committed_schema(index.table))
    return Bundle(index, _member(archive, _PROGRAM, MAX_BYTES), records, before, committed, sent)


def _index(archive: zipfile.ZipFile) -> Index:
    data = _member(archive, _INDEX, _MAX_INDEX_BYTES)
    try:
        found = msgspec.json.decode(data, type=_OnlyFormat).format
        if found > FORMAT:
            raise Refused(
                f"{archive.filename} is a bundle of format {found}; this slackwater reads formats up to {FORMAT}",
                hint="a newer slackwater wrote it: upgrade this one",
            )
        index = msgspec.json.decode(data, type=Index) if found > 0 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its {_INDEX} is not readable: {error}") from error
    if index is None:
        raise ValueError(f"its format is {found}; formats are counted from 1")
    for wrong in checks.relations(index.after):
        raise ValueError(f"in its {_INDEX}, {wrong.field} is {wrong.actual!r:.200}; expected {wrong.expected}")
    return index


def _records(archive: zipfile.ZipFile, number: int, declared: BundledInput) -> Records:
    found = _table(archive, _input(number))
    at = found.num_columns - len(PLACE)
    if at < 0 or pa.schema(list(found.schema)[at:]) != PLACE or any(c.null_count for c in found.columns[at:]):
        raise ValueError(f"{_input(number)!r} does not say where its records are from")
    rows, place = found.select(range(at)), found.select(range(at, found.num_columns))
    return Records(declared.topic, declared.upstream, rows, place)


def _table(archive: zipfile.ZipFile, name: str, schema: pa.Schema | None = None) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.BufferReader(_member(archive, name, MAX_BYTES))) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        # Arrow reports a stream that was cut short as an error of I/O, also where there is no file.
        raise ValueError(f"{name!r} is not an Arrow stream: {error}") from error
    if schema is not None and table.schema != schema:
        raise ValueError(f"{name!r} has columns ({_shown(table.schema)}); expected ({_shown(schema)})")
    fields = zip(table.schema, table.columns, strict=True)
    if any(column.null_count for field, column in fields if not field.nullable):
        raise ValueError(f"{name!r} has nulls where there are none")
    return table


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with archive.open(name) as member:
            data = member.read(most + 1)
    except KeyError:
        raise ValueError(f"it lacks {name!r}") from None
    if len(data) > most:
        raise ValueError(f"{name!r} is larger than {most:,} bytes")
    return data


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
