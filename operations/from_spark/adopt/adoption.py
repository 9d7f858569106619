"""Conversion of a query's checkpoint to a stage: the oldest state becomes a version, then each batch becomes one.

A journal (`apps.CloneJournal`) marks the app as incomplete until the last batch is committed and its rows are verified
against Spark's rows. Then the app gets its identity, and the journal is deleted. A repeated call resumes after the last
version. If the adoption fails, everything that it wrote is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ....common import runtime
from ....errors import Corruption, Gone, Refused
from ....snapshot.take.audit_log import record_operation_once
from ....snapshot.under_way.exclusion import Intent, check_exclusion
from ....state.event_time import TimeRules
from ....state.kinds.kind import kind_of
from ....store.compaction.merge import iter_visible_rows
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst import ttl
from ....store.sst.hashing import hash_values, normalise_keys
from ....store.sst.schema import arrow_schema
from ....store.sst.ttl import BEFORE_FIRST_EVENT_MS
from ....store.versions import apps, codec, history, keys
from ....store.versions.amend import Amendment, amend, read_base
from ....store.versions.entries.ssts import Sst
from ....store.versions.manifest import AppInfo, EventTime, FollowedQuery, Input, Manifest, Output, Table
from ....store.versions.side_tables import part_tables, side_manifests, tables_of, with_part_tables
from ...attach.protocol import ReadableBatch, ReadableCheckpoint
from ...attach.rows import RowWriter
from ...attach.steps import MAX_BATCHES
from ...maintenance.compact import StageCompactor
from .mapping import StateMapping


@dataclass(frozen=True, slots=True)
class AdoptedBatch:
    """A batch of the query and the version that was committed for it."""

    manifest: Manifest
    batch: int
    rows: int


@dataclass(frozen=True, slots=True)
class AdoptionResult:
    """Result of an adoption."""

    app: str
    stage: str
    version: int
    last_batch: int
    checksum: Checksum | None
    """Checksum of the stored rows, which equals that of Spark's rows; None if an earlier call verified them."""
    offsets: Mapping[str, tuple[int, ...]]

    @property
    def already(self) -> bool:
        return self.checksum is None


@dataclass(slots=True)
class Adoption:
    """Commits a version of the stage for each batch of the query.

    All methods may raise `Unavailable`; a repeated call then resumes.
    """

    store: ObjectStore
    cache: SstCache
    checkpoint: ReadableCheckpoint
    first: Manifest
    """First version of the stage, of kind `init`, without rows, offsets and times."""
    new_mapping: Callable[[], StateMapping]
    _: KW_ONLY
    batches: range
    """Batches to adopt, from the oldest batch with complete state files to the last batch."""
    time_rules: TimeRules
    info: AppInfo
    create_channels: Callable[[], Mapping[str, Output]] = dict
    """Function that creates missing channels of the stage, and returns the end offsets of all channels."""
    constant_offsets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Offsets given by the user, by topic. All versions get these offsets instead of the query's offsets."""
    on_step: Callable[[AdoptedBatch], None] = lambda _step: None
    _mapping: StateMapping | None = field(default=None, init=False)

    def run(self) -> AdoptionResult:
        """Create all versions, verify the last one, and complete the app.

        Raises `Refused` if the stage has other versions, a runner of the app is alive, a value does not fit the table,
        or the stored rows differ from Spark's; `Gone` if the query removes files meanwhile. After either error, all
        versions are deleted.
        """
        done = find_adoption(self.store, self.info.name, self.first.stage, self.checkpoint.query)
        if done is not None:
            return done
        self._mark_incomplete()
        try:
            head = self.advance(self._resumable_head())
            checksum = self._verify(head)
        except (Refused, Gone, Corruption):
            self._undo()
            raise
        detail = (
            f"{self.first.stage} v{head.version}: {checksum}, of {self.checkpoint.location} up to batch "
            f"{self.batches[-1]}"
        )
        record_operation_once(
            self.store,
            self.info.name,
            "adopt",
            detail,
            self.first.by,
            {self.first.stage: (0, head.version)},
            since_ms=0,
        )
        if apps.find_app(self.store, self.info.name) is None:
            apps.create_app(self.store, self.info, cloned=True)
        self.store.delete(keys.clone_journal(self.info.name))
        return _adopted(head, checksum)

    def _mark_incomplete(self) -> None:
        store, app = self.store, self.info.name
        if (note := apps.find_clone_journal(store, app)) is not None:
            self.info = note.info
            return
        note = apps.CloneJournal(self.info, "", "", adopts=self.first.stage)
        if apps.find_app(store, app) is None:
            apps.check_root(store)
            apps.check_name_free(store, app)
            apps.begin_clone(store, note)
            return
        check_exclusion(store, app, Intent.ADOPT)
        codec.add(store, keys.clone_journal(app), note, key_of=lambda cloning: keys.clone_journal(cloning.info.name))

    def _resumable_head(self) -> Manifest | None:
        store, app, stage = self.store, self.info.name, self.first.stage
        if (head := history.head(store, app, stage)) is None:
            return None
        adopted, first = head.adopted, history.find(store, app, stage, 1)
        expected = self._followed(self.batches[0])
        fits = adopted is not None and adopted.query == expected.query and adopted.next_batch <= self.batches[-1] + 1
        if fits and first is not None and first.table == self.first.table and first.adopted == expected:
            return head
        self._undo_versions()
        return None

    def advance(self, head: Manifest | None) -> Manifest:
        """Create the versions of the batches after the version `head`; of all batches if `head` is None."""
        rows, table = self._mapping or self.new_mapping(), self.first.table
        assert table is not None  # noqa: S101  a stage without a table was refused
        clock_ms = self._clock_ms()
        writer = RowWriter(self.store, self.cache, self.info.name, self.first.stage, clock_ms)
        if head is None:
            batch = self.checkpoint.read_batch(self.batches[0])
            whole = rows.map_all([self.checkpoint.read_rows(state, batch.id) for state in rows.states])
            ssts = {"": writer.write_differences(self.first, whole, 1)}
            for side in side_manifests(self.first):
                ssts[side.name] = writer.write_differences(side, rows.part_rows(side.name, all_keys=True), 1)
            first = replace(self.first, outputs=dict(self.create_channels()), clock_ms=clock_ms)
            head = self._commit_batch(None, batch, ssts, lambda draft: replace(first, **_identity(draft)))
        elif self._mapping is None:
            last = self._next_batch(head) - 1
            rows.load_state([self.checkpoint.read_rows(state, last) for state in rows.states])
        self._mapping = rows
        while (following := self._next_batch(head)) <= self.batches[-1]:
            up_to = min(following + MAX_BATCHES - 1, self.batches[-1])
            changes = [self.checkpoint.read_changes(state, following - 1, up_to) for state in rows.states]
            for number, *batch_changes in zip(range(following, up_to + 1), *changes, strict=True):
                changed, seq = rows.map_changes(batch_changes), head.version + 1
                ssts = {"": writer.write_changes(table, changed, seq)}
                touched = changed.select([column.name for column in table.key])
                for side in side_manifests(head) if touched.num_rows else ():
                    parts = rows.part_rows(side.name, all_keys=False)
                    ssts[side.name] = writer.write_parts(side, touched, parts, seq)
                head = self._commit_batch(head, self.checkpoint.read_batch(number), ssts, lambda draft: draft)
            head = self._run_merges(head)
        return head

    def _commit_batch(
        self,
        head: Manifest | None,
        batch: ReadableBatch,
        ssts: Mapping[str, tuple[Sst, ...]],
        initialise: Callable[[Manifest], Manifest],
    ) -> Manifest:
        def update(draft: Manifest) -> Manifest:
            manifest = initialise(draft)
            parts = {
                name: replace(side, ssts=side.ssts.plus(ssts.get(name, ())))
                for name, side in part_tables(manifest).items()
            }
            return replace(
                with_part_tables(manifest, parts),
                ssts=manifest.ssts.plus(ssts[""]),
                inputs={name: self._input(name, source, batch) for name, source in manifest.inputs.items()},
                event_time=self._event_time(batch),
                adopted=self._followed(batch.id),
            )

        names = (self.info.name, self.first.stage)
        change = Amendment("init" if head is None else "batch", update, epoch=0 if head is None else head.epoch)
        by, writer = self.first.by, self.first.writer
        manifest = amend(self.store, head or names, change, by=by, now_ms=batch.committed_ms, writer=writer).manifest
        self.on_step(AdoptedBatch(manifest, batch.id, sum(sst.rows for sst in ssts[""])))
        return manifest

    def _run_merges(self, head: Manifest) -> Manifest:
        compactor = StageCompactor(
            self.store, self.cache, head, by=self.first.by, threads=1, now_ms=lambda: 0, stop=runtime.event()
        )
        for _ in compactor.merge_until_done():
            pass
        return read_base(self.store, self.info.name, self.first.stage, head) or head

    def _verify(self, head: Manifest) -> Checksum:
        """Compare the last version's rows with Spark's. Returns the checksum. Raises `Refused` if the rows differ."""
        rows, table = self.new_mapping(), self.first.table
        assert table is not None  # noqa: S101
        stored = checksum_version(self.store, self.cache, head)
        whole = rows.map_all([self.checkpoint.read_rows(state, self.batches[-1]) for state in rows.states])
        from_spark = checksum_rows(whole, table)
        for side, parts in rows.side_tables.items():
            from_spark += checksum_rows(rows.part_rows(side, all_keys=True), parts)
        if stored != from_spark:
            raise Refused(
                f"{self.info.name}/{self.first.stage} would have {stored}, but Spark reads {from_spark} at batch "
                f"{self.batches[-1]}: the changes in {self.checkpoint.location} do not lead to its last state",
                hint="a file of the checkpoint may be damaged; --from-batch N adopts the state of an earlier batch",
            )
        return stored

    def _clock_ms(self) -> int:
        table = self.first.table
        by_write = table is not None and ttl.expires_by_write_time(table.ttl)
        return (
            self.checkpoint.read_batch(self.batches[-1]).committed_ms
            if by_write
            else ttl.claim_clock_ms(None, table, 0)
        )

    def _input(self, name: str, previous: Input, batch: ReadableBatch) -> Input:
        # The first batches have no offsets of a topic that the query began to read later.
        offsets = self.constant_offsets.get(name) or batch.offsets.get(name, previous.offsets)
        previous_sum = sum(previous.offsets) if len(previous.offsets) <= len(offsets) else sum(offsets)
        watermark_ms = batch.next_watermark_ms if name in self.time_rules.timed else None
        rows = max(0, sum(offsets) - previous_sum) if batch.id > self.batches[0] else 0
        return replace(previous, offsets=tuple(offsets), rows=rows, watermark_ms=watermark_ms)

    def _event_time(self, batch: ReadableBatch) -> EventTime | None:
        due_by = self.time_rules.due_by
        if due_by is None and not self.time_rules.timed:
            return None
        return EventTime(
            batch.next_watermark_ms if self.time_rules.timed else None,
            due_ms=batch.watermark_ms if due_by == "watermark" else None,
            # No task has looked for due rows yet.
            next_due_ms=None if due_by is None else BEFORE_FIRST_EVENT_MS,
            by_clock=due_by == "clock",
            behind_ms=self.time_rules.behind_ms,
        )

    def _followed(self, batch: int) -> FollowedQuery:
        num_batches = batch + 1 if batch == self.batches[0] else 1
        return FollowedQuery(self.checkpoint.query, batch + 1, num_batches, self.checkpoint.location)

    def _next_batch(self, head: Manifest) -> int:
        assert head.adopted is not None  # noqa: S101  set in all versions of an adoption
        return head.adopted.next_batch

    def _undo(self) -> None:
        self._undo_versions()
        self.store.delete(keys.clone_journal(self.info.name))

    def _undo_versions(self) -> None:
        """Delete the stage's versions, newest first, so that a crash leaves no gaps; then delete the stage's SSTs."""
        app, stage = self.info.name, self.first.stage
        for version, _ in reversed(list(history.list_manifests(self.store, app, stage))):
            self.store.delete(keys.manifest(app, stage, version))
        for info in list(self.store.list(keys.ssts(app, stage))):
            self.store.delete(info.key)
        history.drop_cached(self.store, app)


def find_adoption(store: ObjectStore, app: str, stage: str, query: str) -> AdoptionResult | None:
    """Return the result of a completed adoption; None if there is none.

    Makes two requests if the stage has no versions. Raises `Refused` if the stage has other versions, or another stage
    of the app is being adopted.
    """
    if (note := apps.find_clone_journal(store, app)) is not None:
        if note.adopts != stage:
            raise apps.clone_in_progress(app)
        return None
    history.list_stages(store, app)  # raises if the app is being removed
    if (newest := history.head(store, app, stage)) is None:
        return None
    find, first = partial(history.find, store, app), partial(history.first_version, store, app)
    last = history.newest_where(find, first, newest, lambda version: version.adopted is not None)
    if last is None or last.adopted is None or last.adopted.query != query or last.table is None:
        raise Refused(
            f"cannot adopt the query as {app}/{stage}: the stage already has versions, up to v{newest.version}",
            hint="adopt it under another --app, or another --stage",
        )
    if kind_of(last.table.state).external_owner:
        raise Refused(
            f"stage {app}/{stage} is attached to this query",
            hint="adopt it under another --app, or another --stage; the attached stage does not change",
        )
    return _adopted(last, None)


def _adopted(last: Manifest, checksum: Checksum | None) -> AdoptionResult:
    assert last.adopted is not None  # noqa: S101  set in all versions of an adoption
    offsets = {source.topic: source.offsets for source in last.inputs.values()}
    return AdoptionResult(last.app, last.stage, last.version, last.adopted.next_batch - 1, checksum, offsets)


def _identity(draft: Manifest) -> dict[str, object]:
    return {
        name: getattr(draft, name) for name in ("app", "stage", "version", "epoch", "writer", "time_ms", "kind", "by")
    }


@dataclass(frozen=True, slots=True)
class Checksum:
    """Number of rows of a table, and the sum of hashes of the rows over all columns, including internal ones."""

    rows: int = 0
    sum: int = 0
    """Sum of the rows' hashes, modulo 2^64."""

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.sum + other.sum) % (1 << 64))

    def __str__(self) -> str:
        return f"{self.rows:,} rows, checksum {self.sum:016x}"


def checksum_rows(rows: Iterable[pa.Table], table: Table) -> Checksum:
    schema, key = arrow_schema(table.columns), [column.name for column in table.key]
    count = total = 0
    for part in rows:
        for batch in normalise_keys(part.select(schema.names).cast(schema), key).combine_chunks().to_batches():
            count += batch.num_rows
            # Unsigned sums wrap around.
            total += int(hash_values(batch.to_struct_array()).sum(dtype=np.uint64))
    return Checksum(count, total % (1 << 64))


def checksum_version(store: ObjectStore, cache: SstCache, version: Manifest) -> Checksum:
    """Return the checksum of the stage's table and of its tables of parts."""
    return sum((_checksum_table(store, cache, table) for table in tables_of(version).values()), Checksum())


def _checksum_table(store: ObjectStore, cache: SstCache, version: Manifest) -> Checksum:
    table = version.table
    assert table is not None  # noqa: S101  callers pass versions with a table
    partitions = range(table.partitions)
    stored = (
        part
        for partition in partitions
        for part in iter_visible_rows(store, cache, version.ssts, table, partition, version.clock_ms)
    )
    return checksum_rows(stored, table)
