"""Bundles as files: a zip of an index in JSON, Arrow streams, and the program.

What lies in a zip may be anybody's: nothing is taken out of it but members of known names, into memory, of a bounded
size, and each is held to what the index says. It holds no pickle.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import pyarrow as pa
from msgspec import Struct

from ...errors import Refused
from ...store.versions import checks
from ...whole_file import whole_file
from .bundle import Bundle, BundledInput, Index, before_schema, committed_schema
from .inputs import PLACE, Records

FORMAT = 1
"""The format that this program writes, and the newest that it reads."""
MAX_BYTES = 1 << 30
"""Of all members together, as they are in memory."""

_INDEX = "index.json"
_PROGRAM = "program.py"
_BEFORE = "before.arrow"
_COMMITTED = "committed.arrow"
_MAX_INDEX_BYTES = 1 << 22
_DAY_ONE = (1980, 1, 1, 0, 0, 0)
"""The date of each member, so that equal bundles have equal bytes."""


class _Header(Struct):
    format: int


def encode(bundle: Bundle) -> bytes:
    """The bytes of the zip. Equal bundles give equal bytes.

    Raises:
        Refused: It is larger than what is read again.
    """
    index = msgspec.to_builtins(bundle.index)
    members = {_INDEX: msgspec.json.format(msgspec.json.encode({"format": FORMAT, **index})), _PROGRAM: bundle.program}
    for name, table in _tables(bundle):
        members[name] = _stream(table)
    size = sum(map(len, members.values()))
    if size > MAX_BYTES:
        raise Refused(
            f"the batch takes {size:,} bytes; expected at most {MAX_BYTES:,} in a bundle",
            hint="name one key with --key",
        )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            entry = zipfile.ZipInfo(name, _DAY_ONE)
            archive.writestr(entry, member, zipfile.ZIP_DEFLATED)
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
            return _Members(path, archive).bundle()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        # An encrypted member is a RuntimeError, a damaged entry may be any of these.
        raise _no_bundle(path, str(error)) from error


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


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _no_bundle(path: Path, why: str) -> Refused:
    return Refused(
        f"{path} is no bundle that can be replayed: {why}",
        hint="write it again: slackwater replay APP/STAGE@VERSION --bundle FILE.zip",
    )


@dataclass(frozen=True, slots=True)
class _Members:
    """Reads the members of a zip."""

    path: Path
    archive: zipfile.ZipFile

    def bundle(self) -> Bundle:
        entries = self.archive.infolist()
        if (size := sum(entry.file_size for entry in entries)) > MAX_BYTES:
            self._wrong(f"its members have {size:,} bytes; expected at most {MAX_BYTES:,}")
        index = self._index()
        expected = self._expected(index)
        names = [entry.filename for entry in entries]
        if strange := sorted(set(names) - expected):
            self._wrong(f"it has a member {strange[0][:100]!r}, which bundles do not have")
        if missing := sorted(expected - set(names)):
            self._wrong(f"it lacks {missing[0]!r}")
        if len(names) > len(expected):
            self._wrong("it has a member twice")
        records = {each.name: self._records(number, each) for number, each in enumerate(index.inputs)}
        sent = {each.name: self._table(_output(at)) for at, each in enumerate(index.outputs) if each.known}
        before = committed = None
        if index.table is not None:
            before = self._table(_BEFORE, before_schema(index.table))
            committed = self._table(_COMMITTED, committed_schema(index.table))
        return Bundle(index, self._member(_PROGRAM, MAX_BYTES), records, before, committed, sent)

    def _expected(self, index: Index) -> set[str]:
        inputs = (_input(number) for number in range(len(index.inputs)))
        outputs = (_output(number) for number, each in enumerate(index.outputs) if each.known)
        state = (_BEFORE, _COMMITTED) if index.table is not None else ()
        return {_INDEX, _PROGRAM, *inputs, *outputs, *state}

    def _index(self) -> Index:
        data = self._member(_INDEX, _MAX_INDEX_BYTES)
        try:
            found = msgspec.json.decode(data, type=_Header).format
            if found > FORMAT:
                raise Refused(
                    f"{self.path} is a bundle of format {found}; this slackwater reads formats up to {FORMAT}",
                    hint="a newer slackwater wrote it: upgrade this one",
                )
            if found < 1:
                self._wrong(f"its format is {found}; formats are counted from 1")
            index = msgspec.json.decode(data, type=Index)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._wrong(f"its {_INDEX} is not readable: {error}")
        for wrong in checks.relations(index.after):
            self._wrong(f"in its {_INDEX}, {wrong.field} is {wrong.found!r:.200}; expected {wrong.expected}")
        return index

    def _records(self, number: int, declared: BundledInput) -> Records:
        found = self._table(_input(number))
        at = found.num_columns - len(PLACE)
        if at < 0 or pa.schema(list(found.schema)[at:]) != PLACE or any(c.null_count for c in found.columns[at:]):
            self._wrong(f"{_input(number)!r} does not say where its records are from")
        rows, place = found.select(range(at)), found.select(range(at, found.num_columns))
        return Records(declared.topic, declared.upstream, rows, place)

    def _table(self, name: str, schema: pa.Schema | None = None) -> pa.Table:
        try:
            with pa.ipc.open_stream(pa.BufferReader(self._member(name, MAX_BYTES))) as stream:
                table = stream.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, MemoryError) as error:
            # Arrow reports a stream that was cut short as an error of I/O, also where there is no file.
            self._wrong(f"{name!r} is not an Arrow stream: {error}")
        if schema is not None and table.schema != schema:
            self._wrong(f"{name!r} has columns ({_shown(table.schema)}); expected ({_shown(schema)})")
        if any(
            column.null_count for field, column in zip(table.schema, table.columns, strict=True) if not field.nullable
        ):
            self._wrong(f"{name!r} has nulls where there are none")
        return table

    def _member(self, name: str, most: int) -> bytes:
        try:
            with self.archive.open(name) as member:
                data = member.read(most + 1)
        except KeyError:
            self._wrong(f"it lacks {name!r}")
        if len(data) > most:
            self._wrong(f"{name!r} is larger than {most:,} bytes")
        return data

    def _wrong(self, why: str) -> NoReturn:
        raise _no_bundle(self.path, why)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
