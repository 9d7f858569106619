"""Follower of a query or topic: claims a stage, then commits a version for each batch.

Batches are combined if it lags.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial

from msgspec.structs import replace

from ...common import instants, runtime
from ...errors import Gone, Refused
from ...snapshot.cut.moments import heads_of
from ...snapshot.take.audit_log import record_operation, whoami
from ...snapshot.under_way.exclusion import Intent, check_exclusion
from ...state.records import id_to_store
from ...store.objects.counting import CountingStore
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import amend as amending
from ...store.versions import apps, history
from ...store.versions.amend import Amendment, amend
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import AppInfo, EventTime, FollowedQuery, Input, Manifest, Table
from ...store.versions.side_tables import as_main_table, table_name
from .protocol import ClaimNeeded, FollowedCheckpoint, ReadableBatch, ReadableTable
from .rows import RowWriter, declare_tables, reconcile_tables, tables_by_side, with_tables
from .steps import ReadChanges, adapt_batches_per_version, next_step

_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]+")
_MAX_MISSES = 8
"""Maximum number of consecutive reads that fail because files were deleted."""
_HEAD_CACHED_S = 60.0
"""Time in seconds for which the newest version is cached."""
_TABLES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """Result of the dry run of `attach`."""

    app: str
    stage: str
    tables: Mapping[str, Table]
    operators: Mapping[str, str]
    next_batch: int
    committed: range
    available: range
    first_ms: int
    """Commit time of the oldest batch with an available whole state, milliseconds since 1970 UTC.

    The current time if there is no such batch.
    """


@dataclass(frozen=True, slots=True)
class FollowedVersion:
    """Version that was committed for one or several batches of the query."""

    manifest: Manifest
    rows: int
    behind_ms: int
    """Milliseconds between the query's commit of the batch and this version's commit, by the wall clock."""


@dataclass(slots=True)
class Tail:
    """Follows one query, and commits versions under its own epoch until a second process claims the stage.

    All methods raise: `Refused` if the stage belongs to another query, or the query's tables have changed; `Fenced` if
    a second process claimed the stage; `Unavailable`; `Corruption` of stored objects.
    """

    store: InitVar[ObjectStore]
    cache: SstCache
    checkpoint: FollowedCheckpoint
    app: str
    stage: str
    _: KW_ONLY
    by: str
    partitions: int = 4
    writer: str = field(default_factory=lambda: str(runtime.ulid()), init=False)
    head: Manifest | None = field(default=None, init=False)
    newest_batch: int = field(default=-1, init=False)
    _store: CountingStore = field(init=False)
    _rows: RowWriter = field(init=False)
    _tables: dict[str, ReadableTable] = field(init=False)
    _misses: int = field(default=0, init=False)
    _batches_per_version: int = field(default=1, init=False)
    _last_read: int = field(default=0, init=False)
    _needs_whole_state: bool = field(default=False, init=False)
    _head_read_s: float = field(default=0.0, init=False)

    def __post_init__(self, store: ObjectStore) -> None:
        self._store = CountingStore(store)
        self._rows = RowWriter(self._store, self.cache, self.app, self.stage)
        self._declare()

    def _declare(self) -> None:
        tables_by_name = declare_tables(self.checkpoint.tables, self.partitions)
        self._tables = dict(zip(tables_by_name, self.checkpoint.tables, strict=True))

    def plan(self) -> AttachPlan:
        """Check that the query can be attached. Returns the effects of `claim`. Writes nothing. Also raises `Gone`."""
        head = history.head(self._store, self.app, self.stage)
        if head is None:
            self._check_app()
        self.checkpoint.resume(head)
        tables = self._checked_tables(head)
        committed, available = self.checkpoint.committed_batches(), self.checkpoint.readable_batches()
        if committed and not available:
            # Reading the newest state raises an error that names the missing file.
            next(iter(self.checkpoint.read_rows(self.checkpoint.tables[0], committed[-1])), None)
        named = {table_name(self.stage, name) if name else self.stage: name for name in tables}
        return AttachPlan(
            self.app,
            self.stage,
            {shown: tables[name] for shown, name in named.items()},
            {shown: self._tables[name].kind for shown, name in named.items()},
            head.attached.next_batch if head is not None and head.attached is not None else 0,
            committed,
            available,
            self._oldest_ms(),
        )

    def claim(self) -> Manifest:
        """Claim the stage under a new epoch. Creates the app if it is missing."""
        check_exclusion(self._store, self.app, Intent.RUN)
        head = history.head(self._store, self.app, self.stage)
        self.checkpoint.resume(head)
        self._checked_tables(head)
        previous = head.attached if head is not None else None

        def build(draft: Manifest) -> Manifest:
            tables = self._checked_tables(draft if draft.attached is not None else None)
            self._needs_whole_state = self._needs_whole_state or not tables.keys() <= tables_by_side(draft).keys()
            attached = draft.attached or FollowedQuery(self.checkpoint.query, 0)
            followed = replace(attached, checkpoint=self.checkpoint.location, formats=dict(self.checkpoint.formats))
            inputs = dict(self.checkpoint.claimed_inputs(draft))
            return replace(with_tables(draft, tables), attached=followed, inputs=inputs)

        def requires(version: Manifest) -> bool:
            self._checked_tables(version)
            return True

        if head is None:
            self._check_app()
            apps.ensure_app(self._store, AppInfo(self.app, instants.now_ms()))
        # Versions have the commit times of the query's batches. A claim gets the time right after the last version, so
        # that batches committed before the claim can follow. The first claim leaves a second before the first batch.
        first_ms = self._oldest_ms() - 1_000 if head is None else 0
        change = Amendment("claim", build, requires)
        amended = amend(
            self._store,
            (self.app, self.stage),
            change,
            by=self.by,
            now_ms=first_ms,
            writer=self.writer,
            take_stats=self._store.take_stats,
        )
        self.head, self._head_read_s = amended.manifest, runtime.monotonic()
        self.checkpoint.resume(self.head)
        if previous is None:
            record_operation(
                self._store, self.app, "attach", f"{self.stage}: {self.checkpoint.location}", whoami(),
                {self.stage: (0, self.head.version)},
            )  # fmt: skip
        return self.head

    def commit_next(self) -> tuple[FollowedVersion, ...]:
        """Read and commit the next batches. Returns the new versions; none if no batch is new.

        Must be called in a loop. The first version has the whole state at the oldest available batch.
        """
        # The next read may meet further new columns in later records. This ends, because every claim adds some.
        while True:
            try:
                return self._commit_next()
            except ClaimNeeded:
                self._declare()
                self.claim()

    def _commit_next(self) -> tuple[FollowedVersion, ...]:
        head = self.head
        assert head is not None and head.attached is not None  # noqa: S101, PT018  it was claimed
        committed, available = self.checkpoint.committed_batches(), self.checkpoint.readable_batches
        previous_newest, self.newest_batch = self.newest_batch, committed[-1] if committed else -1
        whole = self._needs_whole_state or not head.attached.next_batch
        waiting, num_new = self.newest_batch + 1 - head.attached.next_batch, self.newest_batch - previous_newest
        self._batches_per_version, self._last_read = (
            adapt_batches_per_version(waiting, self._last_read, num_new, self._batches_per_version),
            0,
        )
        step = next_step(
            head.attached.next_batch,
            committed,
            available,
            misses=self._misses,
            needs_whole_state=whole,
            batches_per_version=self._batches_per_version,
        )
        if step is None:
            return ()
        if runtime.monotonic() - self._head_read_s > _HEAD_CACHED_S:
            head = self.head = amending.read_base(self._store, self.app, self.stage, head) or head
            self._head_read_s = runtime.monotonic()
        try:
            return (
                self._commit_changes(step) if isinstance(step, ReadChanges) else (self._commit_whole_state(step.batch),)
            )
        except Gone as error:
            self._misses += 1
            if self._misses > _MAX_MISSES:
                raise Refused(
                    f"cannot continue to read {self.checkpoint.location}, after {_MAX_MISSES} more attempts: "
                    f"{error.message}",
                    hint="restore the file if it was lost; if the query removes files before they are read, set a "
                    "larger spark.sql.streaming.minBatchesToRetain",
                ) from error
            return self._commit_next()

    def _commit_changes(self, step: ReadChanges) -> tuple[FollowedVersion, ...]:
        after, up_to = step.batches[0] - 1, step.batches[-1]
        changes_by_table = (
            self.checkpoint.read_changes(table, after, up_to, at_once=step.batches_per_version, appended=True)
            for table in self._tables.values()
        )
        committed, began_s = list[FollowedVersion](), runtime.monotonic()
        try:
            # Changes are read lazily, and each version is committed once its batches are read.
            for number, *changed in zip(step.ends, *changes_by_table, strict=True):
                batch, head = self.checkpoint.read_batch(number), self._head
                tables, seq = tables_by_side(head), head.version + 1
                ssts = {name: side.ssts for name, side in head.side_tables.items()} | {"": head.ssts}
                put = [
                    partial(self._rows.write_changes, tables[name], rows, seq, ssts[name])
                    for name, rows in zip(self._tables, changed, strict=True)
                ]
                new = dict(
                    zip(self._tables, map_concurrently(lambda write: write(), put, _TABLES_AT_ONCE), strict=True)
                )
                committed.append(self._commit(batch, new, seq, began_s))
                self._last_read = number - after
                began_s = runtime.monotonic()
        except Gone:
            if not committed:
                raise
            # The next round finds the same files missing.
        return tuple(committed)

    def _commit_whole_state(self, number: int) -> FollowedVersion:
        began_s, batch, head = runtime.monotonic(), self.checkpoint.read_batch(number), self._head
        seq, new = head.version + 1, {}
        for name, table in self._tables.items():
            stored = as_main_table(head, table_name(self.stage, name)) if name else head
            new[name] = self._rows.write_differences(stored, self.checkpoint.read_rows(table, number), seq)
        version = self._commit(batch, new, seq, began_s)
        self._needs_whole_state = False
        return version

    def _commit(
        self, batch: ReadableBatch, new: Mapping[str, tuple[Sst, ...]], seq: int, began_s: float
    ) -> FollowedVersion:
        expected = self._head
        assert expected.attached is not None  # noqa: S101
        following = expected.attached.next_batch

        def update(draft: Manifest) -> Manifest:
            attached = draft.attached or FollowedQuery(self.checkpoint.query, 0)
            if attached.next_batch != following:
                raise Refused(
                    f"another process changed {self.app}/{self.stage}: expected batch {following} next, found batch "
                    f"{attached.next_batch}"
                )
            sides = {
                name: replace(side, ssts=side.ssts.plus(new.get(name, ()))) for name, side in draft.side_tables.items()
            }
            return replace(
                draft,
                # If a compaction committed meanwhile, the rows' `_seq` differs from the version's number.
                seq=0 if draft.version == seq else seq,
                ssts=draft.ssts.plus(new[""]),
                side_tables=sides,
                inputs=draft.inputs | _inputs(draft, batch),
                event_time=_event_time(draft, batch),
                attached=replace(
                    attached,
                    next_batch=batch.id + 1,
                    batches=batch.id + 1 - following,
                    others=tuple(sorted(map(_input_name, batch.non_kafka))),
                    read_ms=batch.read_ms,
                ),
                duration_ms=round((runtime.monotonic() - began_s) * 1_000),
            )

        change = Amendment("batch", update, epoch=expected.epoch)
        store = self._store
        version = amend(
            store,
            expected,
            change,
            by=self.by,
            now_ms=batch.committed_ms,
            writer=self.writer,
            take_stats=store.take_stats,
        ).manifest
        self.head, self._misses, self._head_read_s = version, 0, runtime.monotonic()
        rows = sum(sst.rows for ssts in new.values() for sst in ssts)
        return FollowedVersion(version, rows, max(0, instants.now_ms() - batch.committed_ms))

    @property
    def _head(self) -> Manifest:
        assert self.head is not None  # noqa: S101  it was claimed
        return self.head

    def _oldest_ms(self) -> int:
        for _ in range(_MAX_MISSES):
            if not (available := self.checkpoint.readable_batches()):
                break
            with suppress(Gone):
                return self.checkpoint.read_batch(available[0]).committed_ms
        return instants.now_ms()

    def _check_app(self) -> None:
        """Raise `Refused` if the app belongs to a program, so that the query's stage cannot be added."""
        apps.check_name_free(self._store, self.app)
        heads = heads_of(self._store, self.app, history.list_stages(self._store, self.app)).values()
        for head in (head for head in heads if head.attached is None and not head.retired):
            raise Refused(
                f"app {self.app!r} belongs to a program: its stage {head.stage!r} is not attached",
                hint="attach under another --app",
            )

    def _checked_tables(self, head: Manifest | None) -> dict[str, Table]:
        current = declare_tables(self.checkpoint.tables, self.partitions)
        if head is None:
            return current
        where = f"{self.app}/{self.stage}"
        if head.attached is None:
            raise Refused(
                f"{where} is a stage of a program: nothing can be attached to it",
                hint="choose another --app, or another --stage",
            )
        if head.retired:
            raise Refused(f"{where} is retired", hint="choose another --stage")
        if head.attached.query != self.checkpoint.query:
            raise Refused(
                f"{where} is attached to {_describe(head.attached.query, head.attached.checkpoint)}, not to "
                f"{_describe(self.checkpoint.query, self.checkpoint.location)}",
                hint="choose another --app, or another --stage",
            )
        self._check_not_rolled_back(head)
        return reconcile_tables(tables_by_side(head), current, self.stage, head.version)

    def _check_not_rolled_back(self, head: Manifest) -> None:
        """Raise `Refused` if the query ran the newest version's last batch again with other offsets."""
        last = head.attached.next_batch - 1 if head.attached is not None else -1
        # The batches of a topic are numbered by versions.
        if self.checkpoint.formats or last < 0 or last not in self.checkpoint.committed_batches():
            return
        with suppress(Gone):
            current_inputs = _inputs(head, self.checkpoint.read_batch(last))
            stored_offsets = {topic: stored.offsets for topic, stored in head.inputs.items()}
            if any(
                current.offsets != stored_offsets.get(topic, current.offsets)
                for topic, current in current_inputs.items()
            ):
                raise Refused(
                    f"the query in {self.checkpoint.location} was rolled back: its batch {last} has other offsets than "
                    f"{self.app}/{self.stage}@v{head.version}",
                    hint="choose another --app, or another --stage; or rewind the app to a version before that",
                )


def _describe(query: str, location: str) -> str:
    return location if location.endswith(f":{query}") else f"the query {query} in {location}"


def _inputs(draft: Manifest, batch: ReadableBatch) -> dict[str, Input]:
    inputs = {}
    for name, offsets in batch.offsets.items():
        topic = _input_name(name)
        previous = draft.inputs.get(topic) or Input(topic, ())
        # The sum falls if the query continues with a recreated topic.
        rows = 0 if name in batch.non_kafka else max(0, sum(offsets) - sum(previous.offsets))
        topic_id = id_to_store(previous.topic_id, batch.topic_ids.get(name, ""))
        inputs[topic] = replace(previous, offsets=tuple(offsets), rows=rows, topic_id=topic_id)
    return inputs


def _input_name(text: str) -> str:
    return _NOT_IN_TOPICS.sub("-", text)[:249] or "source"


def _event_time(draft: Manifest, batch: ReadableBatch) -> EventTime | None:
    if batch.watermark_ms is None:
        return draft.event_time
    previous = draft.event_time or EventTime()
    return replace(previous, watermark_ms=max(batch.watermark_ms, previous.watermark_ms or batch.watermark_ms))
