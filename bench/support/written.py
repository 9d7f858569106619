"""Versions of a table that are written without a runner, for histories that would take hours to produce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import Picker, pick_for_manifest
from slackwater.store.compaction.plan import apply_results
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import commit
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Input, Manifest, Table

from tests.support.histories import write_parts


def ssts(
    store: ObjectStore,
    cache: SstCache | None,
    app: str,
    stage: str,
    table: Table,
    rows: pa.Table,
    seq: int,
    level: int,
    base: Sequence[Sst] = (),
    before: npt.NDArray[np.int64] | None = None,
) -> tuple[Sst, ...]:
    """Write rows as one SST for each state partition that has rows.

    Args:
        store: the store to write to.
        cache: the writer's cache, or None; without a cache, `base` is not looked up.
        app: the app's name.
        stage: the stage's name.
        table: the table.
        rows: its visible columns, each key once.
        seq: the version that writes the rows.
        level: the level of the SSTs.
        base: SSTs in which the previous version of each key is looked up.
        before: the previous version of each key if it is known, 0 for a new key; None to look it up.
    """
    keys = rows.select([column.name for column in table.key])
    hashes, is_known = hash_keys(keys, keys.schema.names), before is not None
    before = before if before is not None else np.zeros(rows.num_rows, np.int64)
    if base and cache is not None and not is_known:
        multi_get(store, cache, base, table, hashes, keys, seqs=before)
    rows = (
        rows.append_column("_hash", pa.array(hashes))
        .append_column("_seq", pa.array(np.full(rows.num_rows, seq)))
        .append_column("_op", pa.array(np.zeros(rows.num_rows, np.int8)))
        .append_column("_prev_seq", pa.array(before))
    )
    return tuple(write_parts(store, app, stage, table, rows, level, cache))


class Stage:
    """A stage with a table, and its newest version.

    Args:
        store: the app's store.
        cache: this machine's cache.
        head: the stage's newest version.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, head: Manifest) -> None:
        assert head.table is not None
        self.head = head
        self._store = store
        self._cache = cache
        self._table = head.table
        self._picker = Picker()

    def put(
        self,
        rows: pa.Table,
        inputs: dict[str, Input] | None = None,
        before: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Commit a batch that writes these rows (visible columns, each key once). `inputs` are its offsets.

        `before` has the version that last wrote each key; None to look it up.
        """
        head = self.head
        place = self._store, self._cache, head.app, head.stage, self._table
        new = ssts(*place, rows, head.version + 1, 0, base=head.ssts, before=before)
        self._commit("batch", (*new, *head.ssts), inputs)

    def read(self, inputs: dict[str, Input]) -> None:
        """Commit a batch that writes no row; `inputs` are its offsets."""
        self._commit("batch", self.head.ssts, inputs)

    def compact(self, *, full: bool = False) -> None:
        """Run the merges that are due by the table's policy, or merge everything."""
        head = self.head
        picked = pick_for_manifest(head, full=True) if full else self._picker.pick(head)
        done = [run_compaction(self._store, self._cache, head.app, head.stage, self._table, one) for one in picked]
        if done:
            self._commit("compaction", apply_results(head.ssts, done))

    def _commit(self, kind: VersionKind, ssts: Iterable[Sst], inputs: dict[str, Input] | None = None) -> None:
        head = self.head
        made = commit.successor(
            head, kind=kind, epoch=head.epoch, writer=head.writer, by=head.by, now_ms=head.time_ms + 1_000
        )
        self.head = replace(made, ssts=ssts, inputs=made.inputs if inputs is None else inputs)
        commit.commit(self._store, self.head)
