"""Checks that the fields of a stored object do not contradict each other.

`limits` has the limits of single fields. `codec` calls `find_violations` for each object that it reads or writes.
Structs of other packages register their checks beside their definitions.
"""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from ...errors import Usage
from ..objects.open import check_root
from . import column_types, keys
from .entries.ssts import Sst, Ssts
from .manifest import AppInfo, Column, FollowedQuery, Input, LostRecords, Manifest, Output, Table

_HEXADECIMAL = b"0123456789abcdefABCDEF"


class Violation(NamedTuple):
    """A field whose value contradicts other fields of its object."""

    field: str
    """Path of the field: `inputs['by-aircraft'].consumed`."""
    actual: object
    expected: str


@singledispatch
def find_violations(value: Any) -> Iterator[Violation]:
    """Yield the fields of a stored value that contradict other fields."""
    return iter(())


def _query_violations(field: str, query: FollowedQuery | None) -> Iterator[Violation]:
    if query is not None and query.batches > query.next_batch:
        yield Violation(f"{field}.batches", query.batches, f"at most those before next_batch, {query.next_batch}")


@find_violations.register
def _(value: Manifest) -> Iterator[Violation]:
    if value.seq > value.version:
        yield Violation("seq", value.seq, f"at most the version, {value.version}")
    for field in ("inputs", "stopped"):
        for name, source in getattr(value, field).items():
            yield from input_violations(f"{field}[{name!r}]", source, value.stage)
            versions = tuple(rewind.version for rewind in source.resets)
            if list(versions) != sorted({*versions}) or versions[-1:] > (value.version,):
                yield Violation(f"{field}[{name!r}].resets", versions, f"ascending versions, at most {value.version}")
    for name, output in value.outputs.items():
        yield from _output_violations(f"outputs[{name!r}]", output)
    for name, sink in value.sinks.items():
        if sink.since > value.version:
            yield Violation(f"sinks[{name!r}].since", sink.since, f"at most the version, {value.version}")
        if sink.rows > sink.sent:
            yield Violation(f"sinks[{name!r}].rows", sink.rows, f"at most all rows sent, {sink.sent}")
    for name, lost in value.lost.items():
        yield from _lost_violations(f"lost[{name!r}]", lost, value.inputs.get(name))
    if value.table is not None:
        yield from table_violations("table", value.table)
    yield from _name_violations(value)
    names = (value.stage, *(rewind.stage for rewind in value.formerly))
    yield from _table_sst_violations("ssts", value.ssts, names, value.version)
    for name, side in value.side_tables.items():
        at = f"side_tables[{name!r}]"
        yield from table_violations(f"{at}.table", side.table)
        yield from _table_sst_violations(f"{at}.ssts", side.ssts, names, value.version)
        if side.total < max(side.rows, side.waiting):
            yield Violation(f"{at}.total", side.total, f"at least its rows, {side.rows}, and those waiting")
    yield from _query_violations("attached", value.attached)
    yield from _query_violations("adopted", value.adopted)
    yield from _snapshot_violations(value)
    previous = 0
    for number, rewind in enumerate(value.rewinds):
        at = f"rewinds[{number}]"
        if not previous < rewind.version <= value.version:
            yield Violation(f"{at}.version", rewind.version, f"above {previous}, at most the version, {value.version}")
        if rewind.to >= rewind.version:
            yield Violation(f"{at}.to", rewind.to, f"less than its version, {rewind.version}")
        previous = rewind.version


def _snapshot_violations(value: Manifest) -> Iterator[Violation]:
    for snapshot, version in value.recorded.items():
        if version > value.version:
            yield Violation(f"recorded[{snapshot!r}]", version, f"at most the version, {value.version}")
    for field in ("awaited", "captured"):
        for snapshot, recordings in getattr(value, field).items():
            if snapshot not in value.recorded:
                yield Violation(f"{field}[{snapshot!r}]", recordings, "nothing, because the snapshot is not recorded")
    for snapshot, spans in value.captured.items():
        for channel, span in spans.items():
            if span.after > span.up_to:
                at = f"captured[{snapshot!r}][{channel!r}].up_to"
                yield Violation(at, span.up_to, f"not below after, {span.after}")


@find_violations.register
def _(value: AppInfo) -> Iterator[Violation]:
    if value.origin is not None:
        yield from root_violations("origin.root", value.origin.root)


def root_violations(field: str, root: str) -> Iterator[Violation]:
    """Yield a violation if a field is not a valid store root. An empty root is valid."""
    try:
        check_root(root)
    except Usage:
        yield Violation(field, root, "a store root: s3://bucket/prefix or an absolute folder")


def input_violations(at: str, source: Input, stage: str) -> Iterator[Violation]:
    if source.upstream == stage:
        yield Violation(f"{at}.upstream", stage, "another stage than itself")
    if not source.upstream and source.version:
        yield Violation(f"{at}.version", source.version, "0, since no stage writes this topic")
    for number, reset in enumerate(source.resets):
        # A re-created topic may have another number of partitions.
        is_last = number == len(source.resets) - 1
        if source.upstream or (is_last and len(reset.ends) > len(source.offsets)):
            expected = f"of a user's topic, with an offset for each of {len(source.offsets)} partitions at most"
            yield Violation(f"{at}.resets[{number}]", reset.ends, expected)
    for field, counts in (("consumed", source.consumed), ("lost", source.lost)):
        if counts and len(counts) != len(source.offsets):
            yield Violation(f"{at}.{field}", counts, f"as many numbers as offsets, {len(source.offsets)}, or none")


def _lost_violations(at: str, lost: LostRecords, source: Input | None) -> Iterator[Violation]:
    if source is None:
        yield Violation(at, lost.topic, "only inputs of the stage")
        return
    partitions = len(source.offsets)
    if not len(lost.starts) == len(lost.ends) == partitions:
        yield Violation(f"{at}.ends", lost.ends, f"as many numbers as offsets, {partitions}, like starts")
    elif not (source.upstream or all(map(int.__le__, lost.starts, lost.ends))):
        # A re-created repartition topic has new offsets.
        yield Violation(f"{at}.ends", lost.ends, f"offsets not below starts, {lost.starts}")
    if lost.rows and len(lost.rows) != partitions:
        yield Violation(f"{at}.rows", lost.rows, f"as many numbers as offsets, {partitions}, or none")
    if lost.after > lost.up_to:
        yield Violation(f"{at}.up_to", lost.up_to, f"not below after, {lost.after}")


def _output_violations(at: str, output: Output) -> Iterator[Violation]:
    if len(output.sent) != len(output.ends):
        yield Violation(f"{at}.sent", output.sent, f"as many numbers as ends, {len(output.ends)}")
    for snapshot, offsets in output.markers.items():
        if len(offsets) != len(output.ends) or not all(map(int.__le__, offsets, output.ends)):
            yield Violation(f"{at}.markers[{snapshot!r}]", offsets, "an offset for each partition, not beyond its end")
    if output.schema:
        try:
            column_types.parse_ddl(output.schema)
        except ValueError:
            yield Violation(f"{at}.schema", output.schema, "a Spark DDL string")


def table_violations(at: str, table: Table) -> Iterator[Violation]:
    seen: set[str] = set()
    for group, columns in (("key", table.key), ("values", table.values)):
        for number, column in enumerate(columns):
            yield from _column_violations(f"{at}.{group}[{number}]", column, seen)
    if len(set(table.column_ids)) < len(table.columns):
        yield Violation(f"{at}.values", table.column_ids, "columns with distinct ids")
    if table.schema and not all(0 < column.id < table.next_id for column in table.columns):
        yield Violation(f"{at}.next_id", table.next_id, "more than each column's id, and all ids above 0")
    if table.ttl is not None and table.ttl.gone and (table.ttl.ms or table.ttl.column):
        yield Violation(f"{at}.ttl.gone", True, "false while rows expire or the column exists")
    if table.ttl is not None and table.ttl.column and table.ttl.column not in {column.name for column in table.values}:
        yield Violation(f"{at}.ttl.column", table.ttl.column, "the name of a value column, or nothing")


def _column_violations(at: str, column: Column, seen: set[str]) -> Iterator[Violation]:
    folded = column.name.casefold()
    if folded in keys.RESERVED_COLUMNS:
        yield Violation(f"{at}.name", column.name, "a name that is not reserved")
    if folded in seen:
        yield Violation(f"{at}.name", column.name, "a name that differs from all others in more than case")
    seen.add(folded)
    try:
        column_types.parse_type(column.type)
    except Usage:
        yield Violation(f"{at}.type", column.type, "the name of a type that columns can have")


def _table_sst_violations(at: str, ssts: Ssts, names: tuple[str, ...], version: int) -> Iterator[Violation]:
    yield from sst_violations(f"{at}.inline", ssts.inline, names, version)
    previous = None
    for number, leaf in enumerate(ssts.leaves):
        field = f"{at}.leaves[{number}]"
        if not keys.LEAF.fullmatch(leaf.object):
            yield Violation(f"{field}.object", leaf.object, f"a key like {keys.leaf('APP', 'STAGE', 'ULID')}")
        if leaf.slot >= leaf.slots or leaf.hash_min > leaf.hash_max:
            yield Violation(f"{field}.slot", leaf.slot, f"less than slots, {leaf.slots}, with hashes in order")
        if previous is not None and leaf.hash_min <= previous.hash_min:
            yield Violation(f"{field}.hash_min", leaf.hash_min, f"above that of the leaf before, {previous.hash_min}")
        if leaf.live < 1:
            yield Violation(f"{field}.removed", leaf.removed, f"fewer names than SSTs, {leaf.ssts}")
        yield from root_violations(f"{field}.root", leaf.root)
        previous = leaf


def sst_violations(at: str, ssts: Sequence[Sst], names: tuple[str, ...], version: int) -> Iterator[Violation]:
    """Yield violations for invalid SST fields, such as a key outside the folders of the stages `names`.

    Without `names`, SSTs of any stage are valid.
    """
    objects = [sst.object for sst in ssts]
    checksums = "".join([sst.checksum for sst in ssts]) + "".join([sst.footer_checksum for sst in ssts])
    if (
        not keys.sst_pattern(*names).fullmatch("\n".join((*objects, "")))
        or len(set(objects)) < len(objects)
        or not _is_hexadecimal(checksums)
        or not all(
            sst.hash_min <= sst.hash_max
            and sst.seq_min <= sst.seq_max <= version
            and sst.tombstones + sst.expiring <= sst.rows <= sst.bytes
            and sst.footer_bytes + sst.filter_bytes <= sst.bytes
            and sst.expires_min <= sst.expires_max
            for sst in ssts
        )
    ):
        seen: set[str] = set()
        for number, sst in enumerate(ssts):
            yield from _violations_of_sst(f"{at}[{number}]", sst, names, version, seen)
            seen.add(sst.object)
    for root in {sst.root for sst in ssts} - {""}:
        number = next(number for number, sst in enumerate(ssts) if sst.root == root)
        yield from root_violations(f"{at}[{number}].root", root)


def _violations_of_sst(at: str, sst: Sst, names: tuple[str, ...], version: int, seen: set[str]) -> Iterator[Violation]:
    counter = "tombstones" if sst.tombstones > sst.rows else "expiring"
    is_key = keys.sst_pattern(*names).fullmatch(f"{sst.object}\n")
    tail_bytes = sst.footer_bytes + sst.filter_bytes
    for right, field, expected in (
        (sst.hash_min <= sst.hash_max, "hash_max", f"not below hash_min, {sst.hash_min}"),
        (sst.seq_min <= sst.seq_max, "seq_max", f"not below seq_min, {sst.seq_min}"),
        (sst.seq_max <= version, "seq_max", f"at most the version, {version}"),
        (sst.rows <= sst.bytes, "rows", f"at most its bytes, {sst.bytes}"),
        (sst.tombstones + sst.expiring <= sst.rows, counter, f"with others at most its rows, {sst.rows}"),
        (tail_bytes <= sst.bytes, "footer_bytes", f"with filter_bytes at most its bytes, {sst.bytes}"),
        (sst.expires_min <= sst.expires_max, "expires_max", f"not below expires_min, {sst.expires_min}"),
        (is_key, "object", f"a key like {keys.sst('APP', (*names, 'STAGE')[0], 'ULID')}"),
        (sst.object not in seen, "object", "an object that is named once"),
    ):
        if not right:
            yield Violation(f"{at}.{field}", getattr(sst, field), expected)
    yield from checksum_violations(f"{at}.checksum", sst.checksum)
    yield from checksum_violations(f"{at}.footer_checksum", sst.footer_checksum)


def _is_hexadecimal(text: str) -> bool:
    return not text.encode(errors="replace").translate(None, _HEXADECIMAL)


def checksum_violations(field: str, checksum: str) -> Iterator[Violation]:
    """Yield a violation if a checksum is not hexadecimal; file names contain checksums."""
    if not _is_hexadecimal(checksum):
        yield Violation(field, checksum, "a checksum of hexadecimal digits")


def _name_violations(value: Manifest) -> Iterator[Violation]:
    if value.called and (not value.retired or value.called == value.stage):
        yield Violation("called", value.called, "empty, or the new name of a retired stage")
    if value.traits.begins == "renamed" and (not value.formerly or value.formerly[-1].version != value.version):
        yield Violation("formerly", value.formerly, "the stage's name before this version, which renames it")
    names, version = {value.stage}, 0
    for number, former in enumerate(value.formerly):
        if former.stage in names:
            yield Violation(f"formerly[{number}].stage", former.stage, "a name that appears once")
        if not version < former.version <= value.version:
            yield Violation(f"formerly[{number}].version", former.version, f"above {version}, at most {value.version}")
        names.add(former.stage)
        version = former.version
