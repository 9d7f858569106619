"""Following a query: a claim of the stage, and then a version for each of its batches, as long as they can be read."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial

from msgspec.structs import replace
from ulid import ULID

from ....common import instants
from ....errors import Gone, Refused
from ....snapshot.cut.moments import heads_of
from ....snapshot.take.audit_log import record, whoami
from ....snapshot.under_way.exclusion import Intent, check_exclusion
from ....store.objects.counting import CountingStore
from ....store.objects.many import many
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.versions import amend as amending
from ....store.versions import apps, history
from ....store.versions.amend import Amendment, amend
from ....store.versions.manifest import AppInfo, EventTime, Followed, Input, Manifest, Sst, Table
from ....store.versions.side_tables import table_name, table_of
from ..checkpoint.protocol import FollowedCheckpoint, ReadableBatch, ReadableTable
from .rows import RowWriter
from .steps import Changes, at_once, next_step
from .tables import agreed, declared, tables_in, with_tables

_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]+")
_MISSES = 8
"""So often in a row what was to be read may be gone before it was, until that is told as an error."""
_KNOWN_S = 60.0
"""For so long the newest version is taken for what it was."""
_TABLES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ToAttach:
    """What `attach` would bring in, and with which batch it would go on."""

    app: str
    stage: str
    tables: Mapping[str, Table]
    """By the names that queries have for them."""
    rows_of: Mapping[str, str]
    """By the same names, the operator whose state it is."""
    next_batch: int
    """The first batch that no version has; 0 for none yet."""
    committed: range
    available: range
    first_ms: int
    """When the oldest batch of which all can be read was committed; now where there is none."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A version that was committed."""

    manifest: Manifest
    rows: int
    """Rows that it wrote, of all tables, those deleted among them."""
    behind_ms: int
    """How long after the query's own commit, by the wall clock."""


@dataclass(slots=True)
class Tail:
    """Follows one query. Its versions are committed under an epoch of its own, which another one's claim ends.

    Raises, from all that it does: `Refused` where the stage is none of this query, or the query's state is not what it
    was, `Fenced` where somebody else has taken the stage, `Unavailable`, and `Corruption` of what is stored.
    """

    store: InitVar[ObjectStore]
    cache: SstCache
    checkpoint: FollowedCheckpoint
    app: str
    stage: str
    _: KW_ONLY
    by: str
    partitions: int = 4
    """State partitions of tables that are new."""
    writer: str = field(default_factory=lambda: str(ULID()), init=False)
    head: Manifest | None = field(default=None, init=False)
    """The newest version, once the stage is claimed."""
    newest_batch: int = field(default=-1, init=False)
    """The last batch that the query had committed when it was looked at last; -1 for none."""
    _store: CountingStore = field(init=False)
    _rows: RowWriter = field(init=False)
    _tables: dict[str, ReadableTable] = field(init=False)
    """By the names of `tables.declared`."""
    _misses: int = field(default=0, init=False)
    _at_once: int = field(default=1, init=False)
    """Batches that become one version."""
    _took: int = field(default=0, init=False)
    """Batches whose changes were read in the round before."""
    _whole: bool = field(default=False, init=False)
    """Whether a table is new, so that nobody knows what was in it."""
    _seen_s: float = field(default=0.0, init=False)

    def __post_init__(self, store: ObjectStore) -> None:
        self._store = CountingStore(store)
        self._rows = RowWriter(self._store, self.cache, self.app, self.stage)
        found = declared(self.checkpoint.tables, self.partitions)
        self._tables = dict(zip(found, self.checkpoint.tables, strict=True))

    def plan(self) -> ToAttach:
        """What there is, and whether it can be attached. Writes nothing. Raises `Gone` as well, for a file."""
        head = history.head(self._store, self.app, self.stage)
        if head is None:
            self._check_app()
        tables = self._agreed(head)
        committed, available = self.checkpoint.committed(), self.checkpoint.available()
        if committed and not available:
            # To read the newest state says what is not there.
            next(iter(self.checkpoint.rows(self.checkpoint.tables[0], committed[-1])), None)
        named = {table_name(self.stage, name) if name else self.stage: name for name in tables}
        return ToAttach(
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
        """Take the stage, from whoever had it; the app is made where there is none."""
        check_exclusion(self._store, self.app, Intent.RUN)
        head = history.head(self._store, self.app, self.stage)
        self._agreed(head)
        known = head.attached if head is not None else None

        def build(draft: Manifest) -> Manifest:
            tables = self._agreed(draft if draft.attached is not None else None)
            self._whole = self._whole or not tables.keys() <= tables_in(draft).keys()
            attached = draft.attached or Followed(self.checkpoint.query, 0)
            return replace(with_tables(draft, tables), attached=replace(attached, checkpoint=self.checkpoint.where))

        def requires(found: Manifest) -> bool:
            self._agreed(found)
            return True

        if head is None:
            self._check_app()
            apps.ensure_app(self._store, AppInfo(self.app, instants.now_ms()))
        # Versions have the times of the query's batches. A claim comes right after one, whenever it is made: batches
        # that were committed meanwhile are still to come. The first leaves room for others before the first batch.
        first_ms = self._oldest_ms() - 1_000 if head is None else 0
        change = Amendment("claim", build, requires)
        made = amend(
            self._store,
            (self.app, self.stage),
            change,
            by=self.by,
            now_ms=first_ms,
            writer=self.writer,
            take_stats=self._store.take,
        )
        self.head, self._seen_s = made.manifest, time.monotonic()
        if known is None:
            record(
                self._store, self.app, "attach", f"{self.stage}: {self.checkpoint.where}", whoami(),
                {self.stage: (0, self.head.version)},
            )  # fmt: skip
        return self.head

    def round(self) -> tuple[Landed, ...]:
        """Read what comes next, and commit it; the versions, none where there is nothing new. Call it again then.

        The first has all rows that there are at the oldest batch that can be read.
        """
        head = self.head
        assert head is not None and head.attached is not None  # noqa: S101, PT018  it was claimed
        committed, available = self.checkpoint.committed(), self.checkpoint.available
        known, self.newest_batch = self.newest_batch, committed[-1] if committed else -1
        whole = self._whole or not head.attached.next_batch
        waiting, came = self.newest_batch + 1 - head.attached.next_batch, self.newest_batch - known
        self._at_once, self._took = at_once(waiting, self._took, came, self._at_once), 0
        step = next_step(
            head.attached.next_batch, committed, available, misses=self._misses, whole=whole, at_once=self._at_once
        )
        if step is None:
            return ()
        if time.monotonic() - self._seen_s > _KNOWN_S:
            head = self.head = amending.newest(self._store, self.app, self.stage, head) or head
            self._seen_s = time.monotonic()
        try:
            return self._changes(step) if isinstance(step, Changes) else (self._whole_state(step.batch),)
        except Gone as error:
            self._misses += 1
            if self._misses > _MISSES:
                raise Refused(
                    f"{self.checkpoint.where} cannot be read on, after {_MISSES} more attempts: {error.message}",
                    hint="restore the file if it was lost; where the query cleans up faster than this reads, have it "
                    "keep more batches: spark.sql.streaming.minBatchesToRetain",
                ) from error
            return self.round()

    def _changes(self, step: Changes) -> tuple[Landed, ...]:
        after, up_to = step.batches[0] - 1, step.batches[-1]
        each_table = (
            self.checkpoint.changes(table, after, up_to, at_once=step.at_once, appended=True)
            for table in self._tables.values()
        )
        made, began_s = list[Landed](), time.monotonic()
        try:
            # Read bit by bit, and what was read is committed.
            for number, *changed in zip(step.ends, *each_table, strict=True):
                batch, head = self.checkpoint.batch(number), self._head
                tables, seq = tables_in(head), head.version + 1
                ssts = {name: each.ssts for name, each in head.side_tables.items()} | {"": head.ssts}
                put = [
                    partial(self._rows.changed, tables[name], rows, seq, ssts[name])
                    for name, rows in zip(self._tables, changed, strict=True)
                ]
                new = dict(zip(self._tables, many(lambda each: each(), put, _TABLES_AT_ONCE), strict=True))
                made.append(self._commit(batch, new, seq, began_s))
                self._took = number - after
                began_s = time.monotonic()
        except Gone:
            if not made:
                raise
            # What is gone is found to be gone by the next round, too.
        return tuple(made)

    def _whole_state(self, number: int) -> Landed:
        began_s, batch, head = time.monotonic(), self.checkpoint.batch(number), self._head
        seq, new = head.version + 1, {}
        for name, table in self._tables.items():
            at = table_of(head, table_name(self.stage, name)) if name else head
            new[name] = self._rows.differing(at, self.checkpoint.rows(table, number), seq)
        made = self._commit(batch, new, seq, began_s)
        self._whole = False
        return made

    def _commit(self, batch: ReadableBatch, new: Mapping[str, tuple[Sst, ...]], seq: int, began_s: float) -> Landed:
        """The version that this batch is, with rows written under `_seq` `seq`; it was looked at from `began_s` on."""
        expected = self._head
        assert expected.attached is not None  # noqa: S101
        following = expected.attached.next_batch

        def update(draft: Manifest) -> Manifest:
            attached = draft.attached or Followed(self.checkpoint.query, 0)
            if attached.next_batch != following:
                raise Refused(f"{self.app}/{self.stage} was changed meanwhile: it stands before batch {following}")
            sides = {
                name: replace(each, ssts=(*each.ssts, *new.get(name, ()))) for name, each in draft.side_tables.items()
            }
            return replace(
                draft,
                # Its rows are stored already where a compaction took the number that it was made for.
                seq=0 if draft.version == seq else seq,
                ssts=(*draft.ssts, *new[""]),
                side_tables=sides,
                inputs=draft.inputs | _inputs(draft, batch),
                event_time=_event_time(draft, batch),
                attached=replace(
                    attached,
                    next_batch=batch.id + 1,
                    batches=batch.id + 1 - following,
                    others=tuple(sorted(map(_topic, batch.others))),
                ),
                duration_ms=round((time.monotonic() - began_s) * 1_000),
            )

        change = Amendment("batch", update, epoch=expected.epoch)
        store = self._store
        made = amend(
            store, expected, change, by=self.by, now_ms=batch.committed_ms, writer=self.writer, take_stats=store.take
        ).manifest
        self.head, self._misses, self._seen_s = made, 0, time.monotonic()
        rows = sum(sst.rows for ssts in new.values() for sst in ssts)
        return Landed(made, rows, max(0, instants.now_ms() - batch.committed_ms))

    @property
    def _head(self) -> Manifest:
        assert self.head is not None  # noqa: S101  it was claimed
        return self.head

    def _oldest_ms(self) -> int:
        """When the oldest batch was committed of which all can be read; now where there is none."""
        for _ in range(_MISSES):
            if not (available := self.checkpoint.available()):
                break
            with suppress(Gone):
                return self.checkpoint.batch(available[0]).committed_ms
        return instants.now_ms()

    def _check_app(self) -> None:
        """Raise `Refused` where no new stage of a query can be in the app."""
        apps.check_free(self._store, self.app)
        others = heads_of(self._store, self.app, history.list_stages(self._store, self.app)).values()
        for other in (each for each in others if each.attached is None and not each.retired):
            raise Refused(
                f"app {self.app!r} is that of a program, which has the stage {other.stage!r}",
                hint="attach the query under another --app",
            )

    def _agreed(self, head: Manifest | None) -> dict[str, Table]:
        found = declared(self.checkpoint.tables, self.partitions)
        if head is None:
            return found
        where = f"{self.app}/{self.stage}"
        if head.attached is None:
            raise Refused(
                f"{where} is a stage of a program: no query can be attached as it",
                hint="choose another --app, or another --stage",
            )
        if head.retired:
            raise Refused(f"{where} is retired", hint="choose another --stage")
        if head.attached.query != self.checkpoint.query:
            raise Refused(
                f"{where} is the state of the query {head.attached.query}, read from {head.attached.checkpoint}; the "
                f"one in {self.checkpoint.where} is {self.checkpoint.query}",
                hint="choose another --app, or another --stage",
            )
        self._check_not_set_back(head)
        return agreed(tables_in(head), found)

    def _check_not_set_back(self, head: Manifest) -> None:
        """Raise `Refused` where the last batch of a version is not the one that it was."""
        last = head.attached.next_batch - 1 if head.attached is not None else -1
        if last < 0 or last not in self.checkpoint.committed():
            return
        with suppress(Gone):
            read = _inputs(head, self.checkpoint.batch(last))
            known = {topic: each.offsets for topic, each in head.inputs.items()}
            if any(each.offsets != known.get(topic, each.offsets) for topic, each in read.items()):
                raise Refused(
                    f"the query in {self.checkpoint.where} was set back: its batch {last} read other offsets than that "
                    f"of {self.app}/{self.stage}@v{head.version}",
                    hint="choose another --app, or another --stage; or rewind the app to a version before that",
                )


def _inputs(draft: Manifest, batch: ReadableBatch) -> dict[str, Input]:
    """How far the query has read its sources."""
    found = {}
    for name, offsets in batch.offsets.items():
        topic = _topic(name)
        before = draft.inputs.get(topic) or Input(topic, ())
        # Fewer than before where the query goes on with a topic that was made anew.
        rows = 0 if name in batch.others else max(0, sum(offsets) - sum(before.offsets))
        found[topic] = replace(before, offsets=tuple(offsets), rows=rows)
    return found


def _topic(text: str) -> str:
    """What an input is called: a Kafka topic by its name, another source by what can be said of it."""
    return _NOT_IN_TOPICS.sub("-", text)[:249] or "source"


def _event_time(draft: Manifest, batch: ReadableBatch) -> EventTime | None:
    if batch.watermark_ms is None:
        return draft.event_time
    known = draft.event_time or EventTime()
    return replace(known, watermark_ms=max(batch.watermark_ms, known.watermark_ms or batch.watermark_ms))
