"""Which rows of each SST a version does not show, as positions, and the files of position deletes that say so.

A delete file says of any number of data files which of their rows count no more. Files add up, so an increment writes
what is new. So that they stay few, a new one takes in those that are not larger than itself: as with the runs of an LSM
tree, a position is then written a number of times that grows as the logarithm of their number.
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
from ....store.read.fetch import corrupt
from ....store.read.visible_rows import hidden_rows
from ....store.sst.expiry import expired
from ....store.sst.ttl import may_have_expired, shows_nothing
from ....store.sst.types import EXPIRES, FIELD_ID
from ....store.versions.manifest import Manifest, Sst

Positions = npt.NDArray[np.int64]
"""Of rows in one file, ascending, each once."""
Deletes = Mapping[str, Positions]
"""By the data file's address, the rows that count no more."""

PATH_ID, POS_ID = 2147483546, 2147483545
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POS_ID).encode()}),
    ]
)
_NONE = np.empty(0, np.int64)


def hidden_positions(store: ObjectStore, cache: SstCache, manifest: Manifest, clock_ms: int) -> dict[Sst, Positions]:
    """Of each SST that shows a row by this clock, the rows that are not shown.

    They are shadowed by a newer SST, tombstones, or expired.
    """
    assert manifest.table is not None  # noqa: S101  versions with one are asked about
    hidden = hidden_rows(store, cache, manifest.ssts, manifest.table)
    found = {}
    for sst in manifest.ssts:
        if shows_nothing(sst, clock_ms):
            continue
        parts = [hidden.get(sst, _NONE)]
        if may_have_expired(sst, clock_ms):
            parts.append(_expired(store, cache, sst, manifest, clock_ms))
        positions = np.unique(np.concatenate(parts))
        if len(positions) < sst.rows:
            found[sst] = positions
    return found


def _expired(store: ObjectStore, cache: SstCache, sst: Sst, manifest: Manifest, clock_ms: int) -> Positions:
    assert manifest.table is not None  # noqa: S101  as above
    mapped = cache.peek(sst, manifest.table)
    try:
        rows = mapped.stored.select([EXPIRES]) if mapped is not None else _column(cache.parquet_path(store, sst))
    except (pa.ArrowException, OSError) as error:
        raise corrupt(sst, f"it cannot be decoded ({error})") from error
    gone = expired(rows, clock_ms)
    return _NONE if gone is None else np.flatnonzero(gone)


def _column(path: Path) -> pa.Table:
    with pq.ParquetFile(path, memory_map=True) as file:
        return read_groups(file, range(file.num_row_groups), [EXPIRES])


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file of position deletes that a snapshot has."""

    path: str
    rows: int
    deletes: Deletes


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What becomes of the delete files."""

    kept: tuple[str, ...]
    """Addresses of those that stay."""
    added: Deletes
    """What a new one says; empty for none."""


def plan_deletes(wanted: Deletes, files: Iterable[DeleteFile]) -> DeletePlan:
    """What a snapshot with just the deletes `wanted`, by all its data files, keeps of these files and has besides.

    A file goes when it says something that is not so any more, and when most of it is of data files that are gone.
    """
    kept: list[tuple[int, str, dict[str, Positions]]] = []
    is_so = _Rows(wanted)
    for file in files:
        live = {path: rows for path, rows in file.deletes.items() if path in wanted}
        number = sum(map(len, live.values()))
        if 2 * number > file.rows and all(is_so.have(path, rows) for path, rows in live.items()):
            kept.append((number, file.path, live))
    missing = _Rows(wanted)
    for _, _, live in kept:
        for path, rows in live.items():
            missing.drop(path, rows)
    added = missing.left()
    kept.sort(key=lambda each: each[:2])
    while added and kept and kept[0][0] <= sum(map(len, added.values())):
        _, _, live = kept.pop(0)
        added |= {path: np.union1d(added.get(path, _NONE), rows) for path, rows in live.items()}
    return DeletePlan(tuple(path for _, path, _ in kept), added)


class _Rows:
    """Rows of data files, as a bit for each: to look at as many as there are costs no sorting."""

    def __init__(self, deletes: Deletes) -> None:
        self._bits: dict[str, npt.NDArray[np.bool_]] = {}
        for path, rows in deletes.items():
            self._bits[path] = np.zeros(int(rows[-1]) + 1, np.bool_)
            self._bits[path][rows] = True

    def have(self, path: str, rows: Positions) -> bool:
        bits = self._bits[path]
        return bool(rows[-1] < bits.size and bits[rows].all())

    def drop(self, path: str, rows: Positions) -> None:
        self._bits[path][rows] = False

    def left(self) -> dict[str, Positions]:
        return {path: np.flatnonzero(bits) for path, bits in self._bits.items() if bits.any()}


def encode(deletes: Deletes) -> bytes:
    """A delete file, sorted by file and position as Iceberg wants it."""
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
    """What a delete file says. Raises `ArrowException` or `OSError` where these are not the bytes of one."""
    rows = read_whole(data)
    names = rows["file_path"].combine_chunks().dictionary_encode()
    codes, positions = np.asarray(names.indices), rows["pos"].to_numpy()
    return {path: np.unique(positions[codes == code]) for code, path in enumerate(names.dictionary.to_pylist())}


def bounds(deletes: Deletes) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The least and the greatest data file that a delete file speaks of, as manifests have them: readers skip by it."""
    return {PATH_ID: min(deletes).encode()}, {PATH_ID: max(deletes).encode()}
