"""A stage out of a query's checkpoint: a version with all rows of its oldest batch, then one for each batch after it.

From the first object on a note says that the app is not whole (`apps.Cloning`), and whoever looks at it is told so.
When the last batch is there, and its rows are those that Spark reads, the app gets its identity and the note goes: then
all of it is there at once. Broken off, the same call goes on behind the last version; what cannot be goes as a whole.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Protocol

import pyarrow as pa
from msgspec.structs import replace

from ....errors import Corruption, Gone, Refused
from ....snapshot.take.audit_log import record_once
from ....snapshot.under_way.exclusion import Intent, check_exclusion
from ....state.event_time import TimeRules
from ....state.kinds.kind import kind_of
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst import ttl
from ....store.sst.ttl import BEFORE_ALL_MS
from ....store.versions import apps, history, keys, notes
from ....store.versions.amend import Amendment, amend, newest
from ....store.versions.manifest import AppInfo, EventTime, Followed, Input, Manifest, Output, Sst
from ...maintenance.compact import StageCompactor
from ..attach.rows import RowWriter
from ..attach.steps import MOST_BATCHES
from ..checkpoint.protocol import ReadableBatch, ReadableCheckpoint, ReadableTable
from .checksum import Checksum, of_rows, of_version
from .columns import MadeColumn


class AdoptedRows(Protocol):
    """Rows of a stage's table, made of a query's. One of it goes through one history."""

    @property
    def states(self) -> Sequence[ReadableTable]:
        """The query's tables of which they are made."""

    @property
    def made(self) -> Sequence[MadeColumn]:
        """Of what each column is made, for people."""

    def whole(self, states: Sequence[Iterable[pa.RecordBatch]], /) -> Iterable[pa.Table]:
        """All rows of the table at the end of a batch, out of those of `states`. Raises `Refused` for a value."""

    def recall(self, states: Sequence[Iterable[pa.RecordBatch]], /) -> None:
        """Begin with changes behind a batch at whose end the state was this."""

    def changes(self, states: Sequence[pa.Table], /) -> pa.Table:
        """What a batch changed, with `DELETED`; the changes of `states` of one batch after the other."""


@dataclass(frozen=True, slots=True)
class AdoptedBatch:
    """A version that was made."""

    manifest: Manifest
    batch: int
    rows: int
    """Rows that it wrote, those deleted among them."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What an adoption did, or found done."""

    app: str
    stage: str
    version: int
    """The last one that is of the query."""
    last_batch: int
    checksum: Checksum | None
    """Of the rows at the last batch, stored and as Spark reads them; None where an earlier call saw that."""
    offsets: Mapping[str, tuple[int, ...]]
    """Where the stage goes on, by topic."""

    @property
    def already(self) -> bool:
        """Whether an earlier call had done it."""
        return self.checksum is None


@dataclass(slots=True)
class Adoption:
    """Makes the stage. Raises, from all that it does, `Unavailable`: the same call again goes on."""

    store: ObjectStore
    cache: SstCache
    checkpoint: ReadableCheckpoint
    first: Manifest
    """The stage's first version, but for rows, inputs' offsets and times: kind "init"."""
    rows: Callable[[], AdoptedRows]
    _: KW_ONLY
    batches: range
    """The query's, from the oldest whose whole state can be read to the last one that counts."""
    rules: TimeRules
    info: AppInfo
    """The app's identity: as it is to be, or is."""
    channels: Callable[[], Mapping[str, Output]] = dict
    """Makes the channels that the stage writes, where there are none, and says where they end."""
    constant: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By topic, the offsets of all versions, where the query's are none of that topic."""
    on_step: Callable[[AdoptedBatch], None] = lambda _step: None
    _rows: AdoptedRows | None = field(default=None, init=False)
    """Those of the versions so far."""

    def run(self) -> Adopted:
        """Make all versions, and the app whole.

        Raises `Refused` where the stage has other versions, a runner of the app lives, a value has no place in the
        table, or what is stored is not what Spark reads, and `Gone` where the query cleans up meanwhile. Nothing is
        left then.
        """
        done = adopted_before(self.store, self.info.name, self.first.stage, self.checkpoint.query)
        if done is not None:
            return done
        self._begin()
        try:
            head = self.advance(self._so_far())
            checksum = self._compared(head)
        except (Refused, Gone, Corruption):
            self._undo()
            raise
        detail = (
            f"{self.first.stage} v{head.version}: {checksum}, of {self.checkpoint.where} up to batch {self.batches[-1]}"
        )
        record_once(
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
        self.store.delete(keys.cloning(self.info.name))
        return _adopted(head, checksum)

    def _begin(self) -> None:
        """Write the note: from here on nobody takes the app for whole."""
        store, app = self.store, self.info.name
        if (note := apps.find_cloning(store, app)) is not None:
            self.info = note.info
            return
        note = apps.Cloning(self.info, "", "", adopts=self.first.stage)
        if apps.find_app(store, app) is None:
            apps.check_root(store)
            apps.check_free(store, app)
            apps.begin_clone(store, note)
            return
        check_exclusion(store, app, Intent.ADOPT)
        notes.add(store, keys.cloning(app), note, under=lambda each: keys.cloning(each.info.name))

    def _so_far(self) -> Manifest | None:
        """The last version that an earlier call made, if this one would make the same."""
        store, app, stage = self.store, self.info.name, self.first.stage
        if (head := history.head(store, app, stage)) is None:
            return None
        found, first = head.adopted, history.find(store, app, stage, 1)
        ours = self._brought(self.batches[0])
        fits = found is not None and found.query == ours.query and found.next_batch <= self.batches[-1] + 1
        if fits and first is not None and first.table == self.first.table and first.adopted == ours:
            return head
        self._undo_versions()
        return None

    def advance(self, head: Manifest | None) -> Manifest:
        """Make the versions behind `head`, None for all, up to that of the last batch."""
        rows, table = self._rows or self.rows(), self.first.table
        assert table is not None  # noqa: S101  a stage that keeps none is refused before
        clock_ms = self._clock_ms()
        writer = RowWriter(self.store, self.cache, self.info.name, self.first.stage, clock_ms)
        if head is None:
            batch = self.checkpoint.batch(self.batches[0])
            whole = rows.whole([self.checkpoint.rows(each, batch.id) for each in rows.states])
            ssts = writer.differing(self.first, whole, 1)
            first = replace(self.first, outputs=dict(self.channels()), clock_ms=clock_ms)
            head = self._committed(None, batch, ssts, lambda draft: replace(first, **_identity(draft)))
        elif self._rows is None:
            last = self._next_batch(head) - 1
            rows.recall([self.checkpoint.rows(each, last) for each in rows.states])
        self._rows = rows
        while (following := self._next_batch(head)) <= self.batches[-1]:
            up_to = min(following + MOST_BATCHES - 1, self.batches[-1])
            changes = [self.checkpoint.changes(each, following - 1, up_to) for each in rows.states]
            for number, *of in zip(range(following, up_to + 1), *changes, strict=True):
                ssts = writer.changed(table, rows.changes(of), head.version + 1)
                head = self._committed(head, self.checkpoint.batch(number), ssts, lambda draft: draft)
            head = self._merged(head)
        return head

    def _committed(
        self,
        head: Manifest | None,
        batch: ReadableBatch,
        ssts: tuple[Sst, ...],
        begun: Callable[[Manifest], Manifest],
    ) -> Manifest:
        def update(draft: Manifest) -> Manifest:
            made = begun(draft)
            return replace(
                made,
                ssts=(*made.ssts, *ssts),
                inputs={name: self._input(name, each, batch) for name, each in made.inputs.items()},
                event_time=self._event_time(batch),
                adopted=self._brought(batch.id),
            )

        names = (self.info.name, self.first.stage)
        change = Amendment("init" if head is None else "batch", update, epoch=0 if head is None else head.epoch)
        by, writer = self.first.by, self.first.writer
        made = amend(self.store, head or names, change, by=by, now_ms=batch.committed_ms, writer=writer).manifest
        self.on_step(AdoptedBatch(made, batch.id, sum(sst.rows for sst in ssts)))
        return made

    def _merged(self, head: Manifest) -> Manifest:
        """The newest version, once all is merged that is due. Its time comes right after that of the batch before."""
        compactor = StageCompactor(
            self.store, self.cache, head, by=self.first.by, threads=1, now_ms=lambda: 0, stop=threading.Event()
        )
        for _ in compactor.until_done():
            pass
        return newest(self.store, self.info.name, self.first.stage, head) or head

    def _compared(self, head: Manifest) -> Checksum:
        """That the last version has just the rows which Spark reads at the last batch."""
        rows, table = self.rows(), self.first.table
        assert table is not None  # noqa: S101
        stored = of_version(self.store, self.cache, head)
        read = of_rows(rows.whole([self.checkpoint.rows(each, self.batches[-1]) for each in rows.states]), table)
        if stored != read:
            raise Refused(
                f"{self.info.name}/{self.first.stage} would have {stored}, and Spark reads {read} at batch "
                f"{self.batches[-1]}: the history in {self.checkpoint.where} is not that of its last state",
                hint="a file of the checkpoint may be damaged; --from-batch takes the state of an earlier one",
            )
        return stored

    def _clock_ms(self) -> int:
        """By which rows expire: none does before the stage runs."""
        table = self.first.table
        by_write = table is not None and ttl.by_write_time(table.ttl)
        return self.checkpoint.batch(self.batches[-1]).committed_ms if by_write else ttl.first_clock_ms(None, table, 0)

    def _input(self, name: str, before: Input, batch: ReadableBatch) -> Input:
        # A topic that the query came to read later has none in its first batches.
        offsets = self.constant.get(name) or batch.offsets.get(name, before.offsets)
        known = sum(before.offsets) if len(before.offsets) <= len(offsets) else sum(offsets)
        watermark_ms = batch.next_watermark_ms if name in self.rules.timed else None
        rows = max(0, sum(offsets) - known) if batch.id > self.batches[0] else 0
        return replace(before, offsets=tuple(offsets), rows=rows, watermark_ms=watermark_ms)

    def _event_time(self, batch: ReadableBatch) -> EventTime | None:
        """As Spark, a batch lets fall due what its own watermark has passed, and the next one what this one left."""
        due_by = self.rules.due_by
        if due_by is None and not self.rules.timed:
            return None
        return EventTime(
            batch.next_watermark_ms if self.rules.timed else None,
            due_ms=batch.watermark_ms if due_by == "watermark" else None,
            # Nobody has looked through the rows for those that fall due.
            next_due_ms=None if due_by is None else BEFORE_ALL_MS,
            by_clock=due_by == "clock",
            behind_ms=self.rules.behind_ms,
        )

    def _brought(self, batch: int) -> Followed:
        brought = batch + 1 if batch == self.batches[0] else 1
        return Followed(self.checkpoint.query, batch + 1, brought, self.checkpoint.where)

    def _next_batch(self, head: Manifest) -> int:
        assert head.adopted is not None  # noqa: S101  all versions that this makes say it
        return head.adopted.next_batch

    def _undo(self) -> None:
        """Leave nothing: a call that cannot end well is as if it had not been."""
        self._undo_versions()
        self.store.delete(keys.cloning(self.info.name))

    def _undo_versions(self) -> None:
        """Delete the stage, its newest version first: of what is left, none lacks the one before it."""
        app, stage = self.info.name, self.first.stage
        for version, _ in reversed(list(history.list_manifests(self.store, app, stage))):
            self.store.delete(keys.manifest(app, stage, version))
        for info in list(self.store.list(keys.ssts(app, stage))):
            self.store.delete(info.key)
        history.forget(self.store, app)


def adopted_before(store: ObjectStore, app: str, stage: str, query: str) -> Adopted | None:
    """What an earlier call did, if that is done; one request for a stage that has no versions, and one for the app.

    Raises `Refused` where the stage has other versions, or another stage of the app is being adopted.
    """
    if (note := apps.find_cloning(store, app)) is not None:
        if note.adopts != stage:
            raise apps.being_cloned(app)
        return None
    history.list_stages(store, app)  # says so where it is being removed
    if (newest := history.head(store, app, stage)) is None:
        return None
    read, first = partial(history.find, store, app), partial(history.first_version, store, app)
    made = history.newest_where(read, first, newest, lambda version: version.adopted is not None)
    if made is None or made.adopted is None or made.adopted.query != query or made.table is None:
        raise Refused(
            f"stage {app}/{stage} has versions already, up to v{newest.version}: a query can only be its first",
            hint="adopt it under another --app, or another --stage",
        )
    if kind_of(made.table.state).elsewhere:
        raise Refused(
            f"stage {app}/{stage} is attached to this query",
            hint="adopt it under another --app, or another --stage; what was attached stays as it is",
        )
    return _adopted(made, None)


def _adopted(last: Manifest, checksum: Checksum | None) -> Adopted:
    assert last.adopted is not None  # noqa: S101  all versions of an adoption say it
    stands = {each.topic: each.offsets for each in last.inputs.values()}
    return Adopted(last.app, last.stage, last.version, last.adopted.next_batch - 1, checksum, stands)


def _identity(draft: Manifest) -> dict[str, object]:
    return {
        name: getattr(draft, name) for name in ("app", "stage", "version", "epoch", "writer", "time_ms", "kind", "by")
    }
