"""Search for the records that made a row: version by version, and through repartition topics to source records.

The result is the provenance of Cui and Widom ("Lineage tracing for general data warehouse transformations", 2003),
computed by replays. A replay of the function over a batch shows the records of each row. If a stage with state sends a
row of a key, the row comes from all records of the key since the key last had no row. Each replay is compared with the
committed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from ....pipeline.batch.rerun import RecordNumbers
from ....pipeline.spark.user_errors import reason_of
from ....snapshot.bisect.explained import ReadRecord, RowVersion
from ....snapshot.bisect.verdict import UnprovedRecord
from ....snapshot.diff.equality import pair_similar_rows
from ....snapshot.diff.key_history import RowChange, VersionList, key_changes
from ....snapshot.diff.stored_rows import KeyReader
from ....state.failing import TooManyFailing, find_failing_alone
from ....state.kinds.join import BoundJoin
from ....state.step import EVERY_HASH
from ....store.sst.arrow_types import python_rows
from ....store.sst.hashing import hash_keys, normalise_keys
from ....store.sst.schema import HASH, arrow_schema
from ....store.versions import history
from ....store.versions.manifest import Manifest
from ..replay.batches import InputPart, OpenBatches, ReplayBatch, explain_difference
from ..replay.joined import records_of_side
from ..replay.program import LoadedProgram
from ..replay.stage_replay import StageReplay, filter_by_keys
from ..replay.what_if import PartRecord

_MAX_EMITTING_KEYS = 1_000
"""Maximum number of keys of one batch that may have emitted the traced rows."""


@dataclass
class WalkedVersion:
    """Version that the walk has reached, with the numbers of its records on which the traced rows depend."""

    manifest: Manifest
    key: pa.Table | None
    """One row of key columns; None for a stage without a table."""
    change: RowChange | None
    batch: ReplayBatch | None = None
    numbers: RecordNumbers = field(default_factory=lambda: np.empty(0, np.int64))
    mixes: str = ""
    """Reason why `numbers` may have unrelated records; empty if all records went into the rows."""
    reasons: dict[str, None] = field(default_factory=dict)
    """Reasons why `numbers` may lack records."""

    def parts(self) -> Iterator[tuple[InputPart, RecordNumbers]]:
        for part in self.batch.parts if self.batch is not None else ():
            if len(numbers := np.intersect1d(part.numbers, self.numbers)):
                yield part, numbers

    def described(self) -> RowVersion:
        manifest, change = self.manifest, self.change
        records = (
            ReadRecord(
                part.batch.address(number),
                part.batch.time_ms(number),
                f"{part.upstream}@v{part.version}" if part.upstream else "",
            )
            for part, numbers in self.parts()
            for number in numbers.tolist()
        )
        return RowVersion(
            manifest.stage,
            manifest.version,
            manifest.time_ms,
            python_rows(self.key)[0] if self.key is not None else None,
            change.before if change is not None else None,
            change.after if change is not None else None,
            tuple(sorted(records, key=lambda record: (record.time_ms, record.location.topic, record.location.offset))),
            "; ".join(filter(None, (self.mixes, *self.reasons))),
        )


@dataclass
class RowWalk:
    """Search upstream for the versions from which some rows were made. `versions` has them in the order of the search.

    Args:
        max_batches: Maximum number of batches to replay; 0 for no limit.
        on_version: Called before each version is replayed.
    """

    program: LoadedProgram
    max_batches: int = 0
    on_version: Callable[[Manifest], None] = lambda _manifest: None
    batches: OpenBatches = field(init=False)
    versions: dict[tuple[str, int, int | None], WalkedVersion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batches = OpenBatches(self.program, self.max_batches)

    @property
    def sources(self) -> Iterator[PartRecord]:
        """Records of users' topics that the walk has reached."""
        for walked in self.versions.values():
            for part, numbers in walked.parts():
                if not part.upstream:
                    yield from ((part, number) for number in numbers.tolist())

    @property
    def lacking(self) -> str:
        """Reason why `sources` may lack records of the rows; empty if `sources` is complete."""
        return next((reason for walked in self.versions.values() for reason in walked.reasons), "")

    def add_row(self, newest: Manifest, key: pa.Table) -> None:
        """Walk to the records from which the row of a key was made. The row is the key's row at the version `newest`.

        If the key has no row, walks to the records of its last row and of that row's removal. Raises `NotFound` if
        garbage collection removes a version meanwhile.
        """
        self._add_changes(self.changes(newest, key), key)

    def _add_changes(self, changes: Iterable[RowChange], key: pa.Table, pairs: pa.Table | None = None) -> None:
        """Walk to the records behind the changes of a key, newest first.

        With `pairs`, which are joined rows, walks only to records that are part of a pair.
        """
        for change in changes:
            manifest = history.read(self.program.store, self.program.app.name, change.stage, change.version)
            place = _place(manifest, key)
            if place in self.versions and pairs is None:
                return  # and with it, all earlier ones
            walked = self.versions.setdefault(place, WalkedVersion(manifest, key, change))
            if not (change.is_by_batch and manifest.traits.reads_records):
                walked.reasons |= dict.fromkeys(reasons_of_change(manifest, change))
            elif (batch := self._open(walked)) is not None:
                self._add_records(walked, self._records_of_key(walked, batch, key, pairs))

    def _add_emitting_key(self, sender: ReplayBatch, key: pa.Table, pairs: pa.Table | None) -> None:
        """Walk to the records behind the rows that a batch sent for a key of its table."""
        manifest = sender.replay.after
        changes = self.changes(manifest, key)
        newest = next(changes, None)
        if newest is None or newest.version < manifest.version:
            # The batch sent rows, but did not change the key's row.
            walked = self.versions.setdefault(_place(manifest, key), WalkedVersion(manifest, key, None, sender))
            self._add_records(walked, self._records_of_key(walked, sender, key, pairs))
            if newest is None or newest.after is None:
                return
        self._add_changes(chain([newest], changes), key, pairs)

    def changes(self, newest: Manifest, key: pa.Table) -> Iterator[RowChange]:
        """Yield the writes of a key up to `newest`, newest first. The last yielded write added the row."""
        for change in writes_of_key(self.program, newest, key):
            yield change
            if change.before is None:
                return

    def _open(self, walked: WalkedVersion) -> ReplayBatch | None:
        manifest = walked.manifest
        if walked.batch is not None:
            return walked.batch
        if self.batches.is_full(manifest.stage, manifest.version):
            walked.reasons[f"not replayed, after {self.max_batches:,} batches: --limit 0 replays all"] = None
            return None
        try:
            if (manifest.stage, manifest.version) not in self.batches.opened:
                self.on_version(manifest)
            walked.batch = self.batches.open(manifest)
            _ = walked.batch.replay.rows()
        except Exception as error:
            walked.batch = None
            walked.reasons[reason_of(error)] = None
        return walked.batch

    def _records_of_key(
        self, walked: WalkedVersion, batch: ReplayBatch, key: pa.Table, pairs: pa.Table | None
    ) -> RecordNumbers:
        replay = batch.replay
        if (reason := difference_of_key(replay, key)) is not None:
            walked.reasons[reason] = None
        if not replay.knows_records:
            walked.mixes = f"the function mixes records, so it may be any of the {replay.count:,} of the batch"
            return np.arange(replay.count)
        if pairs is not None and isinstance(bound := replay.shape.bound, BoundJoin):
            every = np.arange(replay.count)
            sides = [
                records_of_side(every, batch, bound, side, pairs.slice(at, 1))
                for side in (bound.left, bound.right)
                for at in range(pairs.num_rows)
            ]
            return np.unique(np.concatenate(sides))
        return replay.records_of_keys(key)

    def _add_records(self, walked: WalkedVersion, numbers: RecordNumbers) -> None:
        new = np.setdiff1d(numbers, walked.numbers)
        walked.numbers = np.union1d(walked.numbers, new)
        batch = walked.batch
        assert batch is not None  # noqa: S101  the records are its own
        for part in batch.parts:
            own = np.intersect1d(part.numbers, new)
            if part.upstream and len(own):
                try:
                    self._add_sender(walked, part, own)
                except (Exception, TooManyFailing) as error:
                    walked.reasons[reason_of(error)] = None

    def _add_sender(self, walked: WalkedVersion, part: InputPart, numbers: RecordNumbers) -> None:
        place = part.upstream, part.version
        if self.batches.is_full(*place):
            walked.reasons[f"{part.upstream}@v{part.version} is not replayed, after {self.max_batches:,} batches"] = (
                None
            )
            return
        if part.version and part.sender is None:
            self.on_version(history.read(self.program.store, self.program.app.name, *place))
        sender = self.batches.replay_sender(part)
        manifest = sender.replay.after
        if part.trace is not None:
            own, made_of = part.trace
            stateless = self.versions.setdefault((*place, None), WalkedVersion(manifest, None, None, sender))
            self._add_records(stateless, np.unique(made_of[np.isin(own, numbers)]))
            return
        replay = sender.for_output(part.name)
        rows = part.received.take(pa.array(np.searchsorted(part.numbers, numbers)))
        if replay.shape.bound is None:
            stateless = self.versions.setdefault((*place, None), WalkedVersion(manifest, None, None, sender))
            stateless.mixes = f"the function mixes records, so it may be any of the {replay.count:,} of the batch"
            self._add_records(stateless, np.arange(replay.count))
            return
        keys = emitting_keys(replay, rows)
        if not keys.num_rows:
            raise UnprovedRecord(f"{part.batch!r} read rows of {sender!r}, and it is unknown which keys sent them")
        for at in range(keys.num_rows):
            self._add_emitting_key(
                sender, keys.slice(at, 1), rows if isinstance(replay.shape.bound, BoundJoin) else None
            )


def _place(manifest: Manifest, key: pa.Table) -> tuple[str, int, int | None]:
    return manifest.stage, manifest.version, int(hash_keys(key, key.column_names)[0])


def writes_of_key(program: LoadedProgram, newest: Manifest, key: pa.Table) -> Iterator[RowChange]:
    """Yield the writes of a key up to `newest`, newest first, without rewinds and versions that a rewind undid."""
    bases, rewinds = newest.base_versions(of_rows=True), {rewind.version for rewind in newest.rewinds}
    versions = VersionList(program.store, newest.app, newest.stage, newest.version)
    for change in key_changes(versions, KeyReader(program.store, program.cache, key), 0, rewrites=True):
        is_rewind = change.version in rewinds and not change.inherited
        if not is_rewind and any(change.version in numbers for numbers in bases):
            yield change


def reasons_of_change(manifest: Manifest, change: RowChange) -> Iterator[str]:
    """Yield the reasons why the records of a changed row are unknown, if no batch made the change."""
    if change.gap:
        yield f"gc has removed the versions before v{change.version}, which may have changed the row"
    if change.inherited == "clone":
        yield "the row is older than the clone; ask for its source"
    elif change.inherited == "renamed":
        yield f"the row is older than the stage's name; before, it was {change.formerly}"
    elif change.inherited:
        yield f"gc has removed the versions before v{change.version}, which made the row"
    elif change.expired:
        yield "the row expired, by no record"
    elif manifest.edited is not None:
        yield f"{manifest.traits.noun}, by {manifest.edited.by}: {manifest.edited.what}"
    elif not manifest.traits.reads_records:
        yield f"{manifest.traits.noun}, which reads no records"


def difference_of_key(replay: StageReplay, key: pa.Table) -> str | None:
    """Return a sentence with the likely reason if a replay gives other rows of keys than were committed; else None."""
    written = filter_by_keys(replay.written_rows(), key)
    new = replay.merge(filter_by_keys(replay.rows(), key), hash_range(key)).new
    if not len(replay.differing_keys(written, filter_by_keys(new, key))):
        return None
    after = replay.after
    return (
        f"a replay of {after.stage}@v{after.version} gives another row than was committed. "
        f"{explain_difference(replay.program, after)}"
    )


def hash_range(keys: pa.Table) -> tuple[int, int]:
    hashes = hash_keys(keys, keys.column_names)
    return int(hashes.min()), int(hashes.max())


def emitting_keys(replay: StageReplay, sent: pa.Table) -> pa.Table:
    """Return the keys for which a stage with state sent at least one of the rows `sent`.

    The search tests groups of keys. A group that sends such rows is split further. Raises `TooManyFailing`.
    """
    names = arrow_schema(replay.table.key).names
    rows = replay.rows()
    keys = rows.select([HASH, *names])
    if replay.due is not None and replay.due.pending:
        due = replay.stored.get_due_rows(replay.due.span, EVERY_HASH)
        keys = pa.concat_tables([keys, due.keys.select(keys.column_names).cast(keys.schema)])
    hashes = np.asarray(keys[HASH].to_numpy(), np.int64)
    unique, first = np.unique(hashes, return_index=True)

    def sends(items: RecordNumbers) -> bool:
        low, high = int(unique[items[0]]), int(unique[items[-1]])
        own = np.asarray(rows[HASH].to_numpy())
        chosen = rows.filter(pa.array((own >= low) & (own <= high)))
        emitted = replay.sent_rows(chosen, (low, high)).select(sent.column_names).cast(sent.schema)
        return len(pair_similar_rows(emitted, sent)[0]) > 0

    every = np.arange(len(unique), dtype=np.int64)
    if not len(every):
        return keys.select(names)
    emitting = find_failing_alone(every, lambda groups: [sends(group) for group in groups], _MAX_EMITTING_KEYS)
    return normalise_keys(
        keys.select(names).take(pa.array(first[emitting])).cast(arrow_schema(replay.table.key)), names
    )
