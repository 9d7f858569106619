"""Checks of stored objects by size, and of SSTs against their manifest entries, byte by byte and row by row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ...errors import Corruption, NotFound, ObjectNotFound, Refused
from ...store.objects.protocol import ObjectStore, check_key
from ...store.read.decode import check_columns, decode, read_groups
from ...store.read.fetch import fetch
from ...store.read.footers import CHUNK_CHECKSUM_BYTES, check_chunk, decode_footer, decode_index
from ...store.sst.arrow_types import is_sql_safe, python_rows
from ...store.sst.hashing import hash_keys, sort_keys
from ...store.sst.parquet_index import DECODE_ERRORS, probe_filter, split_filter
from ...store.sst.schema import EXPIRES, HASH, OP, PREV, PUT, SEQ, TOMBSTONE
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Manifest, Table
from .report import CheckOutcome, collect_errors

_LIST_PAGE_KEYS = 1000


def check_sizes(store: ObjectStore, expected: Mapping[str, int]) -> Iterator[CheckOutcome]:
    """Check that each object exists and has the expected size.

    Lists folders where that is cheaper than one request per object: a list request returns up to 1,000 objects.
    Raises only `Unavailable`.
    """
    folders: dict[str, list[str]] = {}
    for key in sorted(expected):
        wrong: list[str] = []
        with collect_errors(wrong):
            check_key(key)
            folders.setdefault(key.rpartition("/")[0] + "/", []).append(key)
        if wrong:
            yield CheckOutcome("objects", key, tuple(wrong))
    for folder, names in folders.items():
        sizes: dict[str, int] = {}
        # A listing starts after the given key.
        # A copy of a store whose hot SSTs are elsewhere refuses it, and so does a hot place that is gone.
        with suppress(Refused, NotFound):
            for info in islice(store.list(folder, names[0][:-1]), _LIST_PAGE_KEYS * len(names)):
                if info.key in expected:
                    sizes[info.key] = info.size_bytes
                if info.key >= names[-1]:
                    break
        for key in names:
            if key not in sizes:
                fault = _size_fault(store, key, expected[key])
            else:
                fault = "" if sizes[key] == expected[key] else f"has {sizes[key]} bytes; expected {expected[key]}"
            yield CheckOutcome("objects", key, (f"object {key} {fault}",) if fault else ())


def _size_fault(store: ObjectStore, key: str, expected: int) -> str:
    try:
        last = store.get_range(key, max(0, expected - 1), 2)
    except ObjectNotFound:
        return "is missing"
    return "" if len(last) == 1 else f"has {'more' if last else 'fewer'} than {expected} bytes"


def check_entries(manifest: Manifest) -> CheckOutcome:
    """Check that a manifest's entries for its SSTs are consistent."""
    version = f"{manifest.app}/{manifest.stage} v{manifest.version}"
    # Single entries are checked when the manifest is read (`store.versions.checks`). Of two rows of a key, the row with
    # the larger `_seq` wins, so SSTs that may hold the same key must not share versions.
    ssts = manifest.ssts
    wrong = [f"{version} has {len(ssts)} SSTs and no table"] if ssts and manifest.table is None else []
    # Pairs with overlapping hash ranges, in the order of the manifest. There are few pairs even if there are many SSTs.
    pairs: list[tuple[int, int]] = []
    reached: list[int] = []
    for number in sorted(range(len(ssts)), key=lambda number: ssts[number].hash_min):
        reached = [other for other in reached if ssts[other].hash_max >= ssts[number].hash_min]
        pairs += ((min(number, other), max(number, other)) for other in reached)
        reached.append(number)
    wrong += (
        f"{version}: SSTs {sst.object} and {other.object} overlap in hashes and versions; expected separate versions"
        for sst, other in ((ssts[first], ssts[second]) for first, second in sorted(pairs))
        if sst.seq_min <= other.seq_max and other.seq_min <= sst.seq_max
    )
    return CheckOutcome("objects", version, tuple(wrong), 0)


def reread_sst(store: ObjectStore, sst: Sst, table: Table) -> Iterator[CheckOutcome]:
    """Read a whole SST and check every row. Raises only `Unavailable`."""
    wrong: list[str] = []
    faults: list[str] = []
    with collect_errors(wrong):
        data = fetch(store, sst)
        faults += _index_faults(data, sst, table)
        rows = (
            stored if adapter is None else adapter.convert(stored, adapter.schema.names)
            for stored in decode(data, sst, table)
            for adapter in [check_columns(sst, table, stored.schema, sst.rows)]
        )
        faults += row_faults(rows, sst, [column.name for column in table.key])
    yield CheckOutcome("objects", sst.object, tuple(wrong))
    sentences = tuple(f"SST {sst.object}: {fault}" for fault in faults)
    yield CheckOutcome("rows", sst.object, sentences, 0 if wrong else sst.rows)


def _index_faults(data: bytes, sst: Sst, table: Table) -> Iterator[str]:
    """Yield the faults of footer, filters and page indexes: sizes, checksums, and rows that look-ups would miss."""
    if not 0 < sst.footer_bytes <= len(data):
        yield f"its footer has {sst.footer_bytes} bytes; expected 1 to {len(data)}"
        return
    if (checksum := xxhash.xxh3_128_hexdigest(data[-sst.footer_bytes :])) != sst.footer_checksum:
        yield f"its footer of {sst.footer_bytes} bytes has checksum {checksum}; expected {sst.footer_checksum}"
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
            for chunk in range(len(index.checksums) // CHUNK_CHECKSUM_BYTES):
                start, end = footer.filter_chunk_range(number, chunk)
                check_chunk(data[start:end], chunk, sst, index, number)
            least, most = index.ranges[HASH]
            starts = index.first_row[:-1]
            if (hashes[starts] != least).any() or (hashes[index.first_row[1:] - 1] != most).any():
                yield f"the page index of row group {number} does not match the hashes of its rows"
            column = group.columns[0].meta_data
            start = column.bloom_filter_offset or 0
            chunks = split_filter(data[start : start + (column.bloom_filter_length or 0)])
            hidden = int(np.count_nonzero(~probe_filter(chunks, hashes, footer.filter_bytes(number))))
            if hidden:
                yield f"the filter of row group {number} hides {hidden} of its {len(hashes)} rows"
    except (Corruption, *DECODE_ERRORS) as error:
        yield str(error)


class _Rule(NamedTuple):
    violated: npt.NDArray[np.bool_]
    message: str
    values: tuple[npt.NDArray[np.integer], ...] = ()


def row_faults(batches: Iterable[pa.RecordBatch], sst: Sst, key: Sequence[str]) -> Iterator[str]:
    """Yield the first fault of each kind in an SST's rows. `batches` are in the order of the SST."""
    reported: set[str] = set()
    offset = tombstones = expiring = 0
    last: pa.Table | None = None
    is_showable = True
    bounds: dict[str, tuple[int, int]] = {}
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for rule in (*_value_rules(rows, sst, key), *_order_rules(last, rows, key)):
            if rule.message not in reported and rule.violated.any():
                reported.add(rule.message)
                number = int(np.argmax(rule.violated))
                (key_values,) = python_rows(rows.select(key).slice(number, 1))
                fault = rule.message.format(*(values[number] for values in rule.values))
                yield f"row {offset + number}, {', '.join(f'{k} {v!r}' for k, v in key_values.items())}, {fault}"
        bounds |= {
            name: _extend_range(bounds.get(name), rows[name].to_numpy()) for name in (HASH, SEQ) if rows.num_rows
        }
        if EXPIRES in rows.schema.names and (stamped := rows[EXPIRES].drop_null()):
            bounds[EXPIRES] = _extend_range(bounds.get(EXPIRES), stamped.to_numpy())
            expiring += len(stamped)
        tombstones += int(np.count_nonzero(np.asarray(batch.column(OP)) == TOMBSTONE))
        is_showable = is_showable and is_sql_safe(rows)
        offset += rows.num_rows
        last = rows.slice(rows.num_rows - 1) if rows.num_rows else last
    if tombstones != sst.tombstones:
        yield f"it has {tombstones} tombstones; expected {sst.tombstones}"
    if expiring != sst.expiring:
        yield f"{expiring} of its rows expire; expected {sst.expiring}"
    if is_showable == sst.unshowable:
        yield f"its values {'can all' if is_showable else 'cannot all'} be shown by SQL; expected the opposite"
    expected_ranges = {
        HASH: (sst.hash_min, sst.hash_max),
        SEQ: (sst.seq_min, sst.seq_max),
        EXPIRES: (sst.expires_min, sst.expires_max),
    }
    for name, expected in expected_ranges.items():
        actual = bounds.get(name, (0, 0) if name == EXPIRES else expected)
        if actual != expected:
            yield f"its {name} is {actual[0]} to {actual[1]}; expected {expected[0]} to {expected[1]}"


def _extend_range(bounds: tuple[int, int] | None, values: npt.NDArray[np.integer]) -> tuple[int, int]:
    low, high = int(values.min()), int(values.max())
    return (low, high) if bounds is None else (min(low, bounds[0]), max(high, bounds[1]))


def _value_rules(rows: pa.Table, sst: Sst, key: Sequence[str]) -> Iterator[_Rule]:
    hashes, seqs, ops = (rows[name].to_numpy() for name in (HASH, SEQ, OP))
    expected = hash_keys(rows, key)
    yield _Rule(hashes != expected, "has _hash {}; its key hashes to {}", (hashes, expected))
    outside = (hashes < sst.hash_min) | (hashes > sst.hash_max)
    yield _Rule(outside, f"has _hash {{}}; expected {sst.hash_min} to {sst.hash_max}", (hashes,))
    outside = (seqs < sst.seq_min) | (seqs > sst.seq_max)
    yield _Rule(outside, f"has _seq {{}}; expected {sst.seq_min} to {sst.seq_max}", (seqs,))
    previous = rows[PREV].fill_null(0).to_numpy()
    wrong = (previous < 0) | (previous >= seqs)
    yield _Rule(wrong, "has _prev_seq {}; expected less than its _seq, {}", (previous, seqs))
    yield _Rule(~np.isin(ops, (PUT, TOMBSTONE)), "has _op {}; expected 0 or 1", (ops,))


def _order_rules(last: pa.Table | None, rows: pa.Table, key: Sequence[str]) -> Iterator[_Rule]:
    joined = rows if last is None else pa.concat_tables([last, rows]).combine_chunks()
    order, repeats = sort_keys(joined[HASH].to_numpy(), joined.select(key))
    skip = joined.num_rows - rows.num_rows
    repeated = np.zeros(len(order), np.bool_)
    repeated[order[repeats]] = True
    yield _Rule((order != np.arange(len(order)))[skip:], "is not sorted by (_hash, key)")
    yield _Rule(repeated[skip:], "occurs twice")
