"""Rows of a table whose SSTs this process has open: those of a few keys, without a step of Arrow's for each.

The search is that of `multi_get`: the SSTs of a key's state partition, newest first; a binary search over hashes finds
candidates, equality on the key decides; a tombstone, or a row that is expired, ends it. There the first key of a
look-up costs some 300 µs and each further one 1 µs; here each costs some 10 µs.
"""

from collections.abc import Collection, Iterable, Sequence

from ..sst.sorted_runs import of_hash, touched
from ..sst.types import EXPIRES, OP, TOMBSTONE
from ..versions.manifest import Sst, Table
from .cache_folder import Mapped
from .cells import Cells


class OpenRows:
    """Some state partitions of a table at one version, of which all SSTs are open. Threads may share it.

    It keeps these SSTs mapped for as long as it lives.
    """

    def __init__(self, table: Table, partitions: Collection[int], opened: Iterable[tuple[Sst, Mapped]]) -> None:
        """Of all SSTs in which hashes of these partitions can be."""
        self.table = table
        self.partitions = frozenset(partitions)
        self._key = tuple(column.name for column in table.key)
        self._runs: dict[int, list[tuple[int, int, Cells]]] = {each: [] for each in self.partitions}
        for sst, mapped in sorted(opened, key=lambda each: each[0].seq_max, reverse=True):
            runs = [(cells.hashes[0], cells.hashes[-1], cells) for cells in mapped.cells]
            for partition in self.partitions.intersection(touched(sst, table.partitions)):
                self._runs[partition] += runs

    def has(self, hash_: int) -> bool:
        """Whether a key of this hash is in one of the state partitions."""
        return of_hash(hash_, self.table.partitions) in self.partitions

    def row(
        self, hash_: int, key: tuple[object, ...], names: Sequence[str], clock_ms: int | None
    ) -> dict[str, object] | None:
        """These columns of the row of a key, None where there is none. Values are those of `arrow_types.python_rows`.

        Args:
            hash_: `hash_keys` of the key; of one that the partitions have.
            key: its values, in the order of its columns, as `python_rows` has them.
            names: key and value columns.
            clock_ms: as of `multi_get`.
        """
        for low, high, cells in self._runs[of_hash(hash_, self.table.partitions)]:
            if low <= hash_ <= high:
                at, hashes = int(cells.find(hash_)), cells.hashes
                while at < len(hashes) and hashes[at] == hash_:
                    if _is_same(key, tuple([cells[name](at) for name in self._key])):
                        return {name: cells[name](at) for name in names} if _is_there(cells, at, clock_ms) else None
                    at += 1
        return None


def _is_there(cells: Cells, at: int, clock_ms: int | None) -> bool:
    if cells[OP](at) == TOMBSTONE:
        return False
    if clock_ms is None or not cells.may_expire:
        return True
    expires_ms = cells[EXPIRES](at)
    return not isinstance(expires_ms, int) or expires_ms > clock_ms


def _is_same(key: object, stored: object) -> bool:
    """Equality of keys: null is null, NaN is NaN, also in a struct."""
    if key == stored:
        return True
    if isinstance(key, dict) and isinstance(stored, dict):
        return _is_same(tuple(key.values()), tuple(stored.values()))
    if isinstance(key, tuple) and isinstance(stored, tuple):
        return len(key) == len(stored) and all(map(_is_same, key, stored))
    return bool(key != key and stored != stored)
