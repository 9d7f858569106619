"""Look-ups of a few keys in a table whose SSTs are open in this process.

The algorithm is that of `multi_get`: the SSTs of a key's state partition are searched, newest first. A binary search
over hashes finds candidate rows, whose keys are then compared. A tombstone or an expired row ends the search. Without
Arrow calls, a key costs about 10 µs here. In `multi_get` the first key of a look-up costs about 300 µs, and each
further key 1 µs.
"""

from collections.abc import Collection, Iterable, Sequence

from ..sst.schema import EXPIRES, OP, TOMBSTONE
from ..sst.sorted_runs import overlapped_partitions
from ..versions.entries.hash_ranges import partition_of_hash
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .cache_folder import MappedSst
from .decode import Cells


class OpenRows:
    """State partitions of a table at one version, for look-ups. All SSTs of these state partitions stay mapped.

    Thread-safe.
    """

    def __init__(self, table: Table, partitions: Collection[int], opened: Iterable[tuple[Sst, MappedSst]]) -> None:
        self.table = table
        self.partitions = frozenset(partitions)
        self._key = tuple(column.name for column in table.key)
        self._runs: dict[int, list[tuple[int, int, Cells]]] = {partition: [] for partition in self.partitions}
        for sst, mapped in sorted(opened, key=lambda item: item[0].seq_max, reverse=True):
            runs = [(cells.hashes[0], cells.hashes[-1], cells) for cells in mapped.cells]
            for partition in self.partitions.intersection(overlapped_partitions(sst, table.partitions)):
                self._runs[partition] += runs

    def has_hash(self, hash_: int) -> bool:
        return partition_of_hash(hash_, self.table.partitions) in self.partitions

    def row(
        self, hash_: int, key: tuple[object, ...], names: Sequence[str], clock_ms: int | None
    ) -> dict[str, object] | None:
        """Return the named columns of a key's row, or None. Values are converted as by `arrow_types.python_rows`.

        Args:
            hash_: hash of the key (`hash_keys`), in one of the state partitions.
            key: values of the key columns in order, as from `python_rows`.
            names: key and value columns.
            clock_ms: rows that expire at this time or before are absent; None only for a table without a ttl.
        """
        for low, high, cells in self._runs[partition_of_hash(hash_, self.table.partitions)]:
            if low <= hash_ <= high:
                at, hashes = int(cells.find(hash_)), cells.hashes
                while at < len(hashes) and hashes[at] == hash_:
                    if _is_same(key, tuple([cells[name](at) for name in self._key])):
                        return {name: cells[name](at) for name in names} if _is_visible(cells, at, clock_ms) else None
                    at += 1
        return None


def _is_visible(cells: Cells, at: int, clock_ms: int | None) -> bool:
    if cells[OP](at) == TOMBSTONE:
        return False
    if clock_ms is None or not cells.may_expire:
        return True
    expires_ms = cells[EXPIRES](at)
    return not isinstance(expires_ms, int) or expires_ms > clock_ms


def _is_same(key: object, stored: object) -> bool:
    if key == stored:
        return True
    if isinstance(key, dict) and isinstance(stored, dict):
        return _is_same(tuple(key.values()), tuple(stored.values()))
    if isinstance(key, tuple) and isinstance(stored, tuple):
        return len(key) == len(stored) and all(map(_is_same, key, stored))
    return bool(key != key and stored != stored)
