"""Search for the *parting* of each key: the change after which the app's row differs from the external row.

A few changes of each key are read at a time, newest first, until a version has the external row. So the search costs
little for keys with a recent parting. Many keys are searched together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....snapshot.cut.graph import Cut
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.key_history import RowChange, VersionList, key_changes
from ....snapshot.diff.stored_rows import KeyReader
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.versions.side_tables import stage_of
from .compare import NO_TIME, TableComparison

_CHANGES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Parting:
    """Change after which the app's row of a key differs from the external row."""

    change: RowChange | None
    """The change; None if the table never had a row of the key, or never a row other than the external row."""
    had_theirs: bool
    """True if the version before the change had the row of the external source."""
    changes: tuple[RowChange, ...]
    """Changes read so far, newest first, including all changes since the parting."""


@dataclass
class _KeyLine:
    """Changes of one key so far, newest first. `equal` is True for a change whose row equals the external row."""

    source: Iterator[RowChange]
    their_row: Mapping[str, object] | None
    time_ms: int | None
    changes: list[RowChange] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
    is_whole: bool = False

    def read(self) -> list[RowChange]:
        some = list(islice(self.source, _CHANGES_AT_ONCE))
        self.is_whole = len(some) < _CHANGES_AT_ONCE
        return some

    def parting(self) -> Parting | None:
        """Return the parting; None if the search needs older changes."""
        since = self.time_ms
        # The row at the external row's time, or the newest row.
        numbers = range(len(self.changes))
        at = next((n for n in numbers if since is None or self.changes[n].time_ms <= since), len(self.changes))
        if at == len(self.changes) and not self.is_whole:
            return None
        if self._is_theirs(at):
            later = [n for n in numbers[:at] if not self.equal[n]]
            return self._result(later[-1] if later else None, had_theirs=True)
        older = next((n for n in range(at, len(self.changes) + 1) if self._is_theirs(n)), None)
        if older is None and not self.is_whole:
            return None
        if older is None:
            return self._result(len(self.changes) - 1 if self.changes else None, had_theirs=False)
        return self._result(older - 1, had_theirs=True)

    def _is_theirs(self, number: int) -> bool:
        if number < len(self.changes):
            return self.equal[number]
        begins_empty = not (self.changes and self.changes[-1].inherited)
        return self.is_whole and begins_empty and self.their_row is None

    def _result(self, number: int | None, *, had_theirs: bool) -> Parting:
        return Parting(self.changes[number] if number is not None else None, had_theirs, tuple(self.changes))


def find_partings(
    store: ObjectStore, cache: SstCache, cut: Cut, comparison: TableComparison, *, now_ms: int
) -> list[Parting]:
    """Return the parting of each differing key of a comparison, in order.

    Raises `NotFound` if a version was collected meanwhile.
    """
    keys, times = comparison.changes.keys, comparison.times_ms
    known = [None] * keys.num_rows if times is None else [None if at == NO_TIME else at for at in times.tolist()]
    lines = [
        _KeyLine(source, change.before, time_ms)
        for source, change, time_ms in zip(
            open_histories(store, cache, cut, comparison.table, keys, now_ms=now_ms),
            comparison.changes,
            known,
            strict=True,
        )
    ]
    partings: dict[int, Parting] = {}
    open_lines = list(enumerate(lines))
    while open_lines:
        read = [(number, line, change) for number, line in open_lines for change in line.read()]
        numbers = np.array([number for number, _, _ in read], np.int64)
        flags = _flag_theirs(comparison, numbers, [change.after for _, _, change in read])
        for (_, line, change), is_theirs in zip(read, flags, strict=True):
            line.changes.append(change)
            line.equal.append(is_theirs)
        found = ((number, line.parting()) for number, line in open_lines)
        partings |= {number: parting for number, parting in found if parting is not None}
        open_lines = [(number, line) for number, line in open_lines if number not in partings]
    return [partings[number] for number in range(len(lines))]


def open_histories(
    store: ObjectStore, cache: SstCache, cut: Cut, table: str, keys: pa.Table, *, now_ms: int
) -> Iterator[Iterator[RowChange]]:
    """Yield, for each key, an iterator of the changes of its row up to a cut, newest first."""
    manifest = cut.tables[table]
    keys = normalise_keys(keys, keys.column_names)
    hashes = hash_keys(keys, keys.column_names)
    versions = VersionList(store, cut.app, stage_of(manifest), manifest.version, manifest.stage)
    for number in range(keys.num_rows):
        yield key_changes(versions, KeyReader(store, cache, keys.slice(number, 1), int(hashes[number])), now_ms)


def _flag_theirs(
    comparison: TableComparison, numbers: npt.NDArray[np.int64], rows: Sequence[Mapping[str, object] | None]
) -> list[bool]:
    """Return a flag for each of the differing keys `numbers`: True if the row equals the key's external row."""
    if not rows:
        return []
    theirs = comparison.changes.before.take(pa.array(numbers))
    had_row = comparison.changes.had_row[numbers]
    has_row = np.array([row is not None for row in rows], np.bool_)
    columns = [pa.array([(row or {}).get(column.name) for row in rows], column.type) for column in theirs.schema]
    ours = pa.table(columns, schema=theirs.schema)
    keys = comparison.changes.keys.take(pa.array(numbers))
    compared = KeyChanges.compare(keys, theirs, ours, had_row, has_row, tolerance=comparison.tolerance)
    return [kind == "same" for kind in compared.kinds().tolist()]
