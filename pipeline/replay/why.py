"""The record behind one change of one key: `history --why`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ...moments.cut.graph import Cut
from ...moments.cut.lineage import Lineage, direct, losses
from ...moments.diff.candidates import changed_keys
from ...moments.query.row_local import differing
from ...search.predicate import At
from ...search.verdict import Guilty, Hop, Verdict
from ...store.read.multi_get import multi_get
from ...store.sst.hashing import hash_keys
from ...store.versions import history
from ...store.versions.manifest import Manifest
from .program import Program
from .record import find_record


@dataclass(frozen=True, slots=True)
class _IsAsCommitted:
    """A predicate that says of a cut: the key's row is what one version made of it."""

    stage: str
    key: pa.Table
    row: pa.Table
    """The key's row, or none."""
    sql: str = ""
    channels: bool = False

    @property
    def text(self) -> str:
        return f"the row of a key of {self.stage} is what was committed"

    def tables(self, cut: Cut) -> frozenset[str]:
        return frozenset({self.stage})

    def names(self, table: str) -> bool:
        return table == self.stage

    def rows(self, at: At, max_rows: int) -> pa.Table:
        found = _row(at, at.cut.stages[self.stage], self.key)
        return self.key.slice(0, 0 if differing(self.row, found).num_rows else 1)


def why(
    program: Program, stage: str, version: int, key: pa.Table, on_hop: Callable[[Hop], None] = lambda _hop: None
) -> Guilty:
    """The record with which a key's row became what a version committed, as far as replays prove it.

    Where several records of the batch reach the key, it is the one after which none changed the row any more;
    `Hop.candidates` says how many there are.

    Args:
        program: What is replayed.
        stage: The stage whose table it is.
        version: The version that wrote the row, or removed it.
        key: The key columns, one row, as `parse_key` gives them.
        on_hop: Told of each record that is found on the way up to the user's topic.

    Raises:
        NotFound: A version is gone.
        Unavailable: The store or Kafka did not answer. Others as the user's program raises.
    """
    store, cache, app = program.store, program.cache, program.app.name
    before, after = (history.read(store, app, stage, number) for number in (version - 1, version))
    good, bad = (Cut(app, {stage: manifest}) for manifest in (before, after))
    windows = direct(before, after, losses(after))
    predicate = _IsAsCommitted(stage, key, _row(At(store, cache, bad), after, key))
    verdict = Verdict(
        app=app,
        predicate=predicate,
        stage=stage,
        good=good,
        bad=bad,
        good_ref=f"{app}/{stage}@v{before.version}",
        bad_ref=f"{app}/{stage}@v{version}",
        good_version=before.version,
        bad_version=version,
        good_time_ms=before.time_ms,
        bad_time_ms=after.time_ms,
        lineage=Lineage(stage, windows, windows),
        rows=key,
        more_rows=False,
        keys=changed_keys(store, cache, before, after, key),
        steps=(),
        evaluations=0,
    )
    return find_record(program, verdict, predicate, on_hop)


def _row(at: At, manifest: Manifest, key: pa.Table) -> pa.Table:
    """The key's row at a version, as it is stored; no row where it has none."""
    table = manifest.table
    if table is None:
        return key.slice(0, 0)
    hashes = hash_keys(key, key.column_names)
    values, present = multi_get(at.store, at.cache, manifest.ssts, table, hashes, key, clock_ms=manifest.clock_ms)
    names = [*key.column_names, *values.column_names]
    return pa.table([*key.columns, *values.columns], names).slice(0, int(present[0]))
