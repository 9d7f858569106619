"""Whether objects are there, by their sizes, and an SST what its manifest promises, byte by byte and row by row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ...errors import Corruption, ObjectNotFound
from ...store.objects.protocol import ObjectStore, check_key
from ...store.read.decode import check_shape, decode, read_groups
from ...store.read.fetch import fetch
from ...store.read.footers import CHUNK_CHECKSUM_BYTES, check_chunk, decode_footer, decode_index
from ...store.sst.arrow_types import python_rows
from ...store.sst.bloom import chunks_in, may_have
from ...store.sst.hashing import hash_keys, partition_of, sort_keys
from ...store.sst.parquet_pages import MALFORMED
from ...store.sst.types import EXPIRES, HASH, OP, PREV, PUT, SEQ, TOMBSTONE
from ...store.versions.manifest import Manifest, Sst, Table
from .report import Verified, noted

_PAGE = 1000
"""Keys in one answer of S3 to a listing."""


def check_sizes(store: ObjectStore, expected: Mapping[str, int]) -> Iterator[Verified]:
    """Whether each object is there and has the bytes it should have.

    A listing of their folders while that is cheaper than asking for each by itself: one request for each 1,000 objects
    that lie between the first and the last. Raises only `Unavailable`.
    """
    folders: dict[str, list[str]] = {}
    for key in sorted(expected):
        wrong: list[str] = []
        with noted(wrong):
            check_key(key)
            folders.setdefault(key.rpartition("/")[0] + "/", []).append(key)
        if wrong:
            yield Verified("objects", key, tuple(wrong))
    for folder, names in folders.items():
        found: dict[str, int] = {}
        # A listing begins after the key it is given.
        for info in islice(store.list(folder, names[0][:-1]), _PAGE * len(names)):
            if info.key in expected:
                found[info.key] = info.size_bytes
            if info.key >= names[-1]:
                break
        for key in names:
            if key not in found:
                fault = _wrong_size(store, key, expected[key])
            else:
                fault = "" if found[key] == expected[key] else f"has {found[key]} bytes; expected {expected[key]}"
            yield Verified("objects", key, (f"object {key} {fault}",) if fault else ())


def _wrong_size(store: ObjectStore, key: str, expected: int) -> str:
    """What is wrong with an object's size, by reading the last byte and the one that must not follow it."""
    try:
        last = store.get_range(key, max(0, expected - 1), 2)
    except ObjectNotFound:
        return "is missing"
    return "" if len(last) == 1 else f"has {'more' if last else 'fewer'} than {expected} bytes"


def check_entries(manifest: Manifest) -> Verified:
    """What is wrong with what a manifest says of its SSTs."""
    at = f"{manifest.app}/{manifest.stage} v{manifest.version}"
    # What each entry may say by itself, whoever reads the manifest has seen to (`store.versions.checks`).
    # Of two rows of a key the larger `_seq` wins: SSTs in which one key can be must be of different times.
    ssts = manifest.ssts
    wrong = [f"{at} has {len(ssts)} SSTs and no table"] if ssts and manifest.table is None else []
    # The pairs whose ranges of hashes meet, in the order of the manifest: few, also where there are many SSTs.
    pairs: list[tuple[int, int]] = []
    reached: list[int] = []
    for number in sorted(range(len(ssts)), key=lambda number: ssts[number].hash_min):
        reached = [other for other in reached if ssts[other].hash_max >= ssts[number].hash_min]
        pairs += ((min(number, other), max(number, other)) for other in reached)
        reached.append(number)
    wrong += (
        f"{at}: SSTs {one.object} and {other.object} share hashes and versions; expected them to be of different times"
        for one, other in ((ssts[first], ssts[second]) for first, second in sorted(pairs))
        if one.seq_min <= other.seq_max and other.seq_min <= one.seq_max
    )
    return Verified("objects", at, tuple(wrong), 0)


def reread_sst(store: ObjectStore, sst: Sst, table: Table, partitions: Iterable[int]) -> Iterator[Verified]:
    """Read a whole SST and check every row.

    `partitions` has the numbers of state partitions that the stage had while the SST may have been written; it is empty
    when nobody knows. Raises only `Unavailable`.
    """
    wrong: list[str] = []
    faults: list[str] = []
    with noted(wrong):
        data = fetch(store, sst)
        faults += _index_faults(data, sst, table)
        rows = (
            stored if how is None else how.read(stored, how.schema.names)
            for stored in decode(data, sst, table)
            for how in [check_shape(sst, table, stored.schema, sst.rows)]
        )
        faults += row_faults(rows, sst, [column.name for column in table.key])
        counts = frozenset(partitions)
        if not placed(sst, counts):
            said = " or ".join(map(str, sorted(counts)))
            faults.append(f"its hashes {sst.hash_min} to {sst.hash_max} are of several of {said} state partitions")
    yield Verified("objects", sst.object, tuple(wrong))
    found = tuple(f"SST {sst.object}: {fault}" for fault in faults)
    yield Verified("rows", sst.object, found, 0 if wrong else sst.rows)


def placed(sst: Sst, partitions: frozenset[int]) -> bool:
    """Whether the SST's hashes are of one state partition, under one of these numbers of partitions, if any is known.

    `Sst.partition` has no say: the number of partitions may change while the SSTs stay as they are.
    """
    ends = np.array([sst.hash_min, sst.hash_max], np.int64)
    return not partitions or any(np.ptp(partition_of(ends, count)) == 0 for count in partitions)


def _index_faults(data: bytes, sst: Sst, table: Table) -> Iterator[str]:
    """Whether what look-ups read first, footer and filters, is where the manifest says, and leads to every row."""
    if not 0 < sst.footer_bytes <= len(data):
        yield f"its footer has {sst.footer_bytes} bytes; expected 1 to {len(data)}"
        return
    if (found := xxhash.xxh3_128_hexdigest(data[-sst.footer_bytes :])) != sst.footer_checksum:
        yield f"its footer of {sst.footer_bytes} bytes has checksum {found}; expected {sst.footer_checksum}"
    try:
        footer = decode_footer(data, sst, table)
        file = pq.ParquetFile(pa.BufferReader(data))
        expected = len(data) - sst.footer_bytes - int(footer.end.max())
        if sst.filter_bytes != expected:
            yield f"its filters and page indexes have {sst.filter_bytes} bytes; expected {expected}"
            return
        for number, group in enumerate(footer.groups):
            hashes = read_groups(file, [number], [HASH]).column(HASH).to_numpy()
            index = decode_index(lambda start, end: data[start:end], sst, footer, number)
            for at in range(len(index.checksums) // CHUNK_CHECKSUM_BYTES):
                start, end = footer.filter_at(number, at)
                check_chunk(data[start:end], at, sst, index, number)
            least, most = index.ranges[HASH]
            starts = index.first_row[:-1]
            if (hashes[starts] != least).any() or (hashes[index.first_row[1:] - 1] != most).any():
                yield f"the page index of row group {number} has other hashes than its rows"
            column = group.columns[0].meta_data
            start = column.bloom_filter_offset or 0
            chunks = chunks_in(data[start : start + (column.bloom_filter_length or 0)])
            hidden = int(np.count_nonzero(~may_have(chunks, hashes, footer.filter_bytes(number))))
            if hidden:
                yield f"the filter of row group {number} hides {hidden} of its {len(hashes)} rows"
    except (Corruption, *MALFORMED) as error:
        yield str(error)


class _Rule(NamedTuple):
    """What must hold for rows: where it does not, and what is found and expected there."""

    broken: npt.NDArray[np.bool_]
    says: str
    """With `{}` for each of `values`."""
    values: tuple[npt.NDArray[np.integer], ...] = ()


def row_faults(batches: Iterable[pa.RecordBatch], sst: Sst, key: Sequence[str]) -> Iterator[str]:
    """What is wrong with an SST's rows, which come in its order: of each kind the first. Pure."""
    said: set[str] = set()
    at = tombstones = expiring = 0
    last: pa.Table | None = None
    bounds: dict[str, tuple[int, int]] = {}
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for rule in (*_value_rules(rows, sst, key), *_order_rules(last, rows, key)):
            if rule.says not in said and rule.broken.any():
                said.add(rule.says)
                number = int(np.argmax(rule.broken))
                (named,) = python_rows(rows.select(key).slice(number, 1))
                what = rule.says.format(*(values[number] for values in rule.values))
                yield f"row {at + number}, {', '.join(f'{k} {v!r}' for k, v in named.items())}, {what}"
        bounds |= {name: _wider(bounds.get(name), rows[name].to_numpy()) for name in (HASH, SEQ) if rows.num_rows}
        if EXPIRES in rows.schema.names and (stamped := rows[EXPIRES].drop_null()):
            bounds[EXPIRES] = _wider(bounds.get(EXPIRES), stamped.to_numpy())
            expiring += len(stamped)
        tombstones += int(np.count_nonzero(np.asarray(batch.column(OP)) == TOMBSTONE))
        at += rows.num_rows
        last = rows.slice(rows.num_rows - 1) if rows.num_rows else last
    if tombstones != sst.tombstones:
        yield f"it has {tombstones} tombstones; expected {sst.tombstones}"
    if expiring != sst.expiring:
        yield f"{expiring} of its rows expire; expected {sst.expiring}"
    said_ranges = {
        HASH: (sst.hash_min, sst.hash_max),
        SEQ: (sst.seq_min, sst.seq_max),
        EXPIRES: (sst.expires_min, sst.expires_max),
    }
    for name, said_bounds in said_ranges.items():
        found = bounds.get(name, (0, 0) if name == EXPIRES else said_bounds)
        if found != said_bounds:
            yield f"its {name} is {found[0]} to {found[1]}; expected {said_bounds[0]} to {said_bounds[1]}"


def _wider(known: tuple[int, int] | None, values: npt.NDArray[np.integer]) -> tuple[int, int]:
    low, high = int(values.min()), int(values.max())
    return (low, high) if known is None else (min(low, known[0]), max(high, known[1]))


def _value_rules(rows: pa.Table, sst: Sst, key: Sequence[str]) -> Iterator[_Rule]:
    hashes, seqs, ops = (rows[name].to_numpy() for name in (HASH, SEQ, OP))
    right = hash_keys(rows, key)
    yield _Rule(hashes != right, "has _hash {}; its key hashes to {}", (hashes, right))
    outside = (hashes < sst.hash_min) | (hashes > sst.hash_max)
    yield _Rule(outside, f"has _hash {{}}; expected {sst.hash_min} to {sst.hash_max}", (hashes,))
    outside = (seqs < sst.seq_min) | (seqs > sst.seq_max)
    yield _Rule(outside, f"has _seq {{}}; expected {sst.seq_min} to {sst.seq_max}", (seqs,))
    before = rows[PREV].fill_null(0).to_numpy()
    wrong = (before < 0) | (before >= seqs)
    yield _Rule(wrong, "has _prev_seq {}; expected less than its _seq, {}", (before, seqs))
    yield _Rule(~np.isin(ops, (PUT, TOMBSTONE)), "has _op {}; expected 0 or 1", (ops,))


def _order_rules(last: pa.Table | None, rows: pa.Table, key: Sequence[str]) -> Iterator[_Rule]:
    """Sorted by (`_hash`, key), each key once: also with the last row of what came before."""
    joined = rows if last is None else pa.concat_tables([last, rows]).combine_chunks()
    order, repeats = sort_keys(joined[HASH].to_numpy(), joined.select(key))
    skip = joined.num_rows - rows.num_rows
    repeated = np.zeros(len(order), np.bool_)
    repeated[order[repeats]] = True
    yield _Rule((order != np.arange(len(order)))[skip:], "is not in the order of (_hash, key)")
    yield _Rule(repeated[skip:], "is there twice")
