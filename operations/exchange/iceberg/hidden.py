"""Position deletes of an Iceberg export: the positions of rows in SSTs that a version hides, and their files.

A delete file lists hidden rows of any number of data files. Readers apply all delete files together, so an export
writes only new positions. To limit the number of files, a new file includes the contents of existing files up to its
own size. As in an LSM tree, each position is rewritten O(log n) times.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.decode import read_groups, read_whole
from ....store.read.fetch import corruption_error
from ....store.read.visible_rows import find_hidden_rows
from ....store.sst.schema import EXPIRES, FIELD_ID, expired_mask
from ....store.sst.ttl import has_expired_rows, has_no_visible_rows
from ....store.versions.entries.ssts import Sst
from ....store.versions.manifest import Manifest

Positions = npt.NDArray[np.int64]
"""Ascending, distinct row positions in one file."""
Deletes = Mapping[str, Positions]
"""Positions of hidden rows, by the address of their data file."""

PATH_ID, POS_ID = 2147483546, 2147483545
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POS_ID).encode()}),
    ]
)
_NO_POSITIONS = np.empty(0, np.int64)


def hidden_positions(store: ObjectStore, cache: SstCache, manifest: Manifest, clock_ms: int) -> dict[Sst, Positions]:
    """Return the positions of hidden rows, by SST. SSTs without visible rows at `clock_ms` are left out.

    A row is hidden if it is shadowed by a newer SST, is a tombstone, or has expired.
    """
    assert manifest.table is not None  # noqa: S101  callers pass versions with a table
    hidden = find_hidden_rows(store, cache, manifest.ssts, manifest.table)
    positions_by_sst = {}
    for sst in manifest.ssts:
        if has_no_visible_rows(sst, clock_ms):
            continue
        parts = [hidden.get(sst, _NO_POSITIONS)]
        if has_expired_rows(sst, clock_ms):
            parts.append(_expired_positions(store, cache, sst, manifest, clock_ms))
        positions = np.unique(np.concatenate(parts))
        if len(positions) < sst.rows:
            positions_by_sst[sst] = positions
    return positions_by_sst


def _expired_positions(store: ObjectStore, cache: SstCache, sst: Sst, manifest: Manifest, clock_ms: int) -> Positions:
    assert manifest.table is not None  # noqa: S101  as above
    mapped = cache.cached_rows(sst, manifest.table)
    try:
        rows = mapped.stored.select([EXPIRES]) if mapped is not None else _read_expiry(cache.parquet_path(store, sst))
    except (pa.ArrowException, OSError) as error:
        raise corruption_error(sst, f"it cannot be decoded ({error})") from error
    gone = expired_mask(rows, clock_ms)
    return _NO_POSITIONS if gone is None else np.flatnonzero(gone)


def _read_expiry(path: Path) -> pa.Table:
    with pq.ParquetFile(path, memory_map=True) as file:
        return read_groups(file, range(file.num_row_groups), [EXPIRES])


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file of position deletes in a snapshot."""

    path: str
    rows: int
    deletes: Deletes


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """Plan of the delete files of a table's next snapshot."""

    remaining: tuple[str, ...]
    added: Deletes
    """Contents of a new delete file; empty if none is needed."""


def plan_deletes(expected: Deletes, files: Iterable[DeleteFile]) -> DeletePlan:
    """Plan which delete files a snapshot keeps and which deletes it adds, so that exactly `expected` is deleted.

    `expected` has all data files of the snapshot with hidden rows. An existing delete file is dropped if a delete in it
    is not in `expected`, or if at least half of its deletes are for dropped data files.
    """
    kept_files: list[tuple[int, str, dict[str, Positions]]] = []
    for file in files:
        live = {path: rows for path, rows in file.deletes.items() if path in expected}
        num_rows = sum(map(len, live.values()))
        if 2 * num_rows > file.rows and all(np.isin(rows, expected[path]).all() for path, rows in live.items()):
            kept_files.append((num_rows, file.path, live))
    added = {}
    for path, rows in expected.items():
        kept_rows = [_NO_POSITIONS, *(live[path] for _, _, live in kept_files if path in live)]
        if len(missing := rows[~np.isin(rows, np.concatenate(kept_rows))]):
            added[path] = missing
    kept_files.sort(key=lambda file: file[:2])
    while added and kept_files and kept_files[0][0] <= sum(map(len, added.values())):
        _, _, live = kept_files.pop(0)
        added |= {path: np.union1d(added.get(path, _NO_POSITIONS), rows) for path, rows in live.items()}
    return DeletePlan(tuple(path for _, path, _ in kept_files), added)


def encode(deletes: Deletes) -> bytes:
    """Encode a delete file, sorted by path and position as Iceberg requires."""
    paths: Sequence[str] = sorted(deletes)
    lengths = [len(deletes[path]) for path in paths]
    names = pa.DictionaryArray.from_arrays(np.repeat(np.arange(len(paths), dtype=np.int32), lengths), paths)
    positions = pa.array(np.concatenate([deletes[path] for path in paths]), pa.int64())
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table([names.cast(pa.string()), positions], schema=_SCHEMA),
        sink,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
    )
    return bytes(sink.getvalue())


def decode(data: bytes) -> dict[str, Positions]:
    """Decode a delete file. Raises `ArrowException` or `OSError` for invalid bytes."""
    rows = read_whole(data)
    names = rows["file_path"].combine_chunks().dictionary_encode()
    codes, positions = np.asarray(names.indices), rows["pos"].to_numpy()
    return {path: np.unique(positions[codes == code]) for code, path in enumerate(names.dictionary.to_pylist())}


def bounds(deletes: Deletes) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return the lower and upper bound of the paths in a delete file, by field id. Readers use them to skip files."""
    return {PATH_ID: min(deletes).encode()}, {PATH_ID: max(deletes).encode()}
