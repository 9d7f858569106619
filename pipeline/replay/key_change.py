"""From a change of a key to the input record behind it: what is bad is that the row is as it was committed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...moments.cut.graph import Cut
from ...moments.cut.lineage import direct, losses
from ...moments.diff.candidates import changed_keys
from ...moments.query.row_local import differing
from ...search.predicate import Context, OfAllTables
from ...search.verdict import Guilty
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import hash_keys
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .program import LoadedProgram
from .record import behind


def why(program: LoadedProgram, stage: str, version: int, key: pa.Table) -> Guilty:
    """The record with which a key's row became what a version committed, as far as replays prove it.

    Where several records of the batch reach the key, it is the one after which none changed the row any more;
    `Hop.candidates` says how many there are. `version` wrote the row, or removed it; `key` is one row of key columns,
    as `parse_key` gives it. Raises `NotFound` where a version is gone, and as `find_record`.
    """
    store, cache, app = program.store, program.cache, program.app.name
    before, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    cut = Cut(app, {stage: after})
    predicate = _IsAsCommitted(
        "the row is what was committed", stage, key, _row(Context(store, cache, cut), after, key)
    )
    keys = changed_keys(store, cache, before, after, key)
    return behind(program, predicate, cut, stage, keys, direct(before, after, losses(after)))


@dataclass(frozen=True, slots=True)
class _IsAsCommitted(OfAllTables):
    """A predicate that says of a cut: the key's row, or that it has none, is what one version made of it."""

    stage: str
    key: pa.Table
    row: pa.Table

    def rows(self, at: Context, max_rows: int) -> pa.Table:
        found = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(0, 0 if differing(self.row, found).num_rows else 1)


def _row(at: Context, manifest: Manifest, key: pa.Table) -> pa.Table:
    """The key's row at a version, as it is stored; no row where it has none."""
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
