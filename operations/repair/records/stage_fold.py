"""Repaired rows of one stage's keys: replays of the versions after a changed batch, as if its input had been different.

Each batch that read records of the keys is replayed twice: on the committed rows, and on the repaired rows. The first
replay must give the committed result. A key is dropped as soon as both rows are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import Refused
from ....snapshot.change.edited import DELETED
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.key_history import RowChange, VersionList
from ....state.step import StepResult
from ....store.read.multi_get import TableLookUps
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.sst.schema import HASH, arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest, Table
from ....store.versions.side_tables import REJECTED
from ...debugging.explain.walk import difference_of_key, reasons_of_change, writes_of_key
from ...debugging.replay.batches import OpenBatches
from ...debugging.replay.known_rows import KnownRows, known_schema, merge_known
from ...debugging.replay.stage_replay import StageReplay, filter_by_keys
from .bounds import KeyLimit, check_state, check_watermark
from .changes import BatchChange, changed_rows, parting_rows

SentRows = tuple[pa.Table, pa.Table]
"""Two tables of a version's sent rows: rows that it would no longer send, and rows that it would send now."""


@dataclass
class StageFold:
    """Rows of some keys of a stage as if some of its batches had had other input.

    Args:
        head: Newest version of the stage.
        changes: Changed input of batches, by version.
        seeds: Additional keys to follow from a version on, by version, although no change of input affects them.
        on_version: Called before each version is replayed.
    """

    batches: OpenBatches
    head: Manifest
    changes: Mapping[int, BatchChange]
    seeds: Mapping[int, pa.Table]
    limit: KeyLimit
    on_version: Callable[[Manifest], None] = lambda _manifest: None
    sent: dict[tuple[int, str], SentRows] = field(default_factory=dict)
    """Differences of sent rows, by version and output."""
    begun: dict[int, pa.Table] = field(default_factory=dict)
    """Keys whose rows first differ at a version, by version."""
    keys: pa.Table = field(init=False)
    """Keys whose repaired rows differ from the committed rows, with `_hash`."""
    rows: pa.Table = field(init=False)
    """Repaired rows of `keys` (`known_schema`)."""
    _followed: pa.Table = field(init=False)
    """All keys that were followed at any version, with `_hash`."""
    _obstacles: dict[int, dict[int, str]] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Compute the repaired rows of all versions up to `head`.

        Raises `Refused` if the keys' rows depend on more than their records, or if a replay does not give the committed
        rows. Also raises the errors of replays.
        """
        self._waiting = [*{*self.changes, *self.seeds}]
        heapify(self._waiting)
        if self.head.table is None:
            for version in sorted(self._waiting):
                self._fold_stateless(version)
            return
        self.keys = pa.schema([pa.field(HASH, pa.int64()), *arrow_schema(self._table.key)]).empty_table()
        self.rows = known_schema(self._table).empty_table()
        self._followed = self.keys
        last = 0
        while self._waiting:
            version = heappop(self._waiting)
            if version != last:
                self._fold(version)
            last = version

    @property
    def followed(self) -> frozenset[int]:
        """Hashes of all keys that were followed at any version."""
        return frozenset(self._followed[HASH].to_pylist()) if self.head.table is not None else frozenset()

    @property
    def _table(self) -> Table:
        assert self.head.table is not None  # noqa: S101  a stage without a table has no keys
        return self.head.table

    def _open(self, version: int) -> StageReplay:
        manifest = history.read(self.batches.program.store, self.head.app, self.head.stage, version)
        if (self.head.stage, version) not in self.batches.opened:
            self.on_version(manifest)
        return self.batches.open(manifest).replay

    def _fold_stateless(self, version: int) -> None:
        replay, change = self._open(version), self.changes[version]
        check_watermark(replay, replay.rows(), changed_rows(replay, change))
        batch = self.batches.opened[self.head.stage, version]
        for output in replay.stage.writes:
            own = batch.for_output(output.name)
            self._note_sent(version, output.name, own.rows(), changed_rows(own, change))

    def _note_sent(self, version: int, output: str, before: pa.Table, after: pa.Table) -> None:
        parting = parting_rows(before, after)
        if any(rows.num_rows for rows in parting):
            self.sent[version, output] = parting

    def _fold(self, version: int) -> None:
        manifest = history.read(self.batches.program.store, self.head.app, self.head.stage, version)
        self._check_passable(manifest)
        if not manifest.traits.reads_records:
            self._pass_repair(manifest)
            return
        replay = self._open(version)
        check_state(replay)
        rows, seeds = replay.rows(), [self.seeds[version]] if version in self.seeds else []
        after = changed_rows(replay, self.changes[version]) if version in self.changes else rows
        every, changed = (replay.step.split_late(some)[0] for some in (rows, after))
        if version in self.changes:
            check_watermark(replay, rows, after)
            seeds += [some.select(self._key) for some in parting_rows(every, changed)]
            if (late := replay.stage.late_output) is not None:
                self._note_sent(version, late.name, replay.late_rows(rows), replay.late_rows(after))
        self._follow(manifest, replay.before, seeds)
        if self.keys.num_rows:
            self._merge(replay, every, changed)

    @property
    def _may_keep_rows(self) -> bool:
        bound = self.batches.program.shapes[self.head.stage].bound
        return bound is not None and bound.may_keep_rows

    @property
    def _key(self) -> list[str]:
        return [column.name for column in self._table.key]

    def _check_passable(self, manifest: Manifest) -> None:
        """Raise `Refused` if a version changed a followed key's row by other means than records or a repair."""
        reasons = self._obstacles.get(manifest.version, {})
        for value in self.keys[HASH].to_pylist():
            if value in reasons:
                raise Refused(
                    f"{manifest.stage}@v{manifest.version} changed a row that the record went into: {reasons[value]}",
                    hint=f"`slackwater history {manifest.app}/{manifest.stage} KEY` shows it; "
                    f"to change the row itself: slackwater edit {manifest.app}/{manifest.stage}",
                )

    def _follow(self, after: Manifest, before: Manifest, seeds: list[pa.Table]) -> None:
        """Start to follow keys, from their rows before the version `after`."""
        schema = self.keys.schema.remove(0)
        keys = normalise_keys(
            pa.concat_tables([schema.empty_table(), *(rows.cast(schema) for rows in seeds)]), self._key
        )
        hashes = hash_keys(keys, self._key)
        new, first = np.unique(hashes, return_index=True)
        first = first[~np.isin(new, self.keys[HASH].to_numpy())]
        if not len(first):
            return
        keys, hashes = keys.take(pa.array(first)), hashes[first]
        self.limit.add(self.head.stage, hashes.tolist())
        self.begun[after.version] = keys
        keyed = keys.add_column(0, HASH, pa.array(hashes))
        self._begin(before, keyed)
        known = np.isin(hashes, self._followed[HASH].to_numpy())
        self._followed = pa.concat_tables([self._followed, keyed.filter(pa.array(~known))])
        later = set[int]()
        for at in np.flatnonzero(~known).tolist():
            later.update(self._later_versions(after.version, keys.slice(at, 1), int(hashes[at])))
        if self._may_keep_rows and not known.all():
            later.update(self._later_batches(after.version))
        self._open_together(later)
        for other in later:
            heappush(self._waiting, other)

    def _open_together(self, versions: Iterable[int]) -> None:
        store = self.batches.program.store
        manifests = (history.read(store, self.head.app, self.head.stage, version) for version in sorted(versions))
        self.batches.open_together([manifest for manifest in manifests if manifest.has_read])

    def _begin(self, before: Manifest, keys: pa.Table) -> None:
        """Use the rows of keys in a version as their repaired rows. `keys` has `_hash`."""
        values, present, seqs = self._stored(before).get_rows(keys[HASH].to_numpy(), keys.select(self._key))
        rows = pa.table([*keys.columns, *values.columns, pa.array(seqs)], schema=self.rows.schema)
        self.rows = pa.concat_tables([self.rows, rows.filter(pa.array(present))]).sort_by(HASH)
        self.keys = pa.concat_tables([self.keys, keys])

    def _stored(self, version: Manifest) -> TableLookUps:
        program = self.batches.program
        return TableLookUps(program.store, program.cache, self._table, version.ssts, version.clock_ms)

    def _pass_repair(self, manifest: Manifest) -> None:
        """Follow the keys of an earlier repair again: it may have removed other records than this repair."""
        left = pc.invert(pc.is_in(self._followed[HASH], self.keys[HASH].combine_chunks()))
        before = history.read(self.batches.program.store, manifest.app, manifest.stage, manifest.version - 1)
        self._begin(before, self._followed.filter(left))
        self._follow(manifest, before, [self.seeds[manifest.version]] if manifest.version in self.seeds else [])
        self._settle(manifest)

    def _later_versions(self, version: int, key: pa.Table, value: int) -> Iterator[int]:
        """Yield the versions after `version` that wrote a key, and note changes without a batch in `_obstacles`."""

        def is_later(change: RowChange) -> bool:
            return change.version > version

        for change in takewhile(is_later, writes_of_key(self.batches.program, self.head, key)):
            manifest = history.read(self.batches.program.store, self.head.app, self.head.stage, change.version)
            if not manifest.traits.repairs_rows and (reason := "; ".join(reasons_of_change(manifest, change))):
                self._obstacles.setdefault(change.version, {})[value] = reason
            yield change.version

    def _later_batches(self, version: int) -> Iterator[int]:
        versions = VersionList(self.batches.program.store, self.head.app, self.head.stage, self.head.version)
        for numbers in self.head.base_versions(version):
            for manifest in versions.read(*map(versions.index_from_version, numbers)):
                # A retry of rejected records reads nothing.
                if manifest.has_read or (manifest.traits.reads_records and REJECTED in manifest.side_tables):
                    yield manifest.version

    def _merge(self, replay: StageReplay, every: pa.Table, changed: pa.Table) -> None:
        keys = self.keys.select(self._key)
        if (reason := difference_of_key(replay, keys)) is not None:
            raise Refused(reason, hint="slackwater check FILE")
        known = KnownRows.of(replay, self.rows)
        own, now = (filter_by_keys(rows, keys) for rows in (every, changed))
        was = replay.merge(own) if own.num_rows else StepResult(pa.table({}))
        result, self.rows = merge_known(replay, now, known.rows) if now.num_rows else (was, self.rows)
        self._note_emitted(replay, was if own.num_rows else None, result if now.num_rows else None)
        self._settle(replay.after)

    def _note_emitted(self, replay: StageReplay, was: StepResult | None, now: StepResult | None) -> None:
        schemas = replay.step.state.emitted_schemas
        outputs = replay.stage.emits_to
        for at, output in enumerate(outputs):
            index = at if len(schemas) > 1 else 0
            before, after = (
                result.emitted[index] if result is not None and result.emitted else schemas[index].empty_table()
                for result in (was, now)
            )
            self._note_sent(replay.after.version, output.name, before, after)

    def _settle(self, after: Manifest) -> None:
        """Stop following the keys whose repaired rows equal the rows that a version committed."""
        keys, known = self.keys.select(self._key), self.rows
        changes = self._compare(after, keys, known)
        differing = changes.kinds() != "same"
        if not differing.all():
            self.keys = self.keys.filter(pa.array(differing))
            self.rows = known.filter(pc.is_in(known[HASH], self.keys[HASH].combine_chunks()))

    def _compare(self, after: Manifest, keys: pa.Table, known: pa.Table) -> KeyChanges:
        program, hashes = self.batches.program, np.asarray(self.keys[HASH].to_numpy(), np.int64)
        committed, had_row, _ = self._stored(after).get_rows(hashes, keys)
        rows, has_row, _ = KnownRows(program.store, program.cache, self._table, (), 0, rows=known).get_rows(
            hashes, keys
        )
        return KeyChanges.compare(keys, committed, rows.cast(committed.schema), had_row, has_row)

    def changes_now(self) -> KeyChanges | None:
        """Return the rows of `head` to change; None without changes or without a table."""
        if self.head.table is None or not self.keys.num_rows:
            return None
        changes = self._compare(self.head, self.keys.select(self._key), self.rows).changed()
        return changes if len(changes) else None


def edit_rows(changes: KeyChanges) -> pa.Table:
    """Return the rows of an edit with these changes: key, values and `DELETED`."""
    rows = pa.table(
        [*changes.keys.columns, *changes.after.columns], [*changes.keys.column_names, *changes.after.column_names]
    )
    return rows.append_column(DELETED, pa.array(~changes.has_row)).combine_chunks()
