"""`slackwater replicate`: copies what an app has more than its replica, and says last up to where that is complete.

A round puts, in this order: notes that versions go by, SSTs, manifests, all else beside them, snapshots, what is kept
of Kafka, what may exist, the snapshot that pins the cut, and the cut. What the app has given up goes after that
(`sweep`). Killed anywhere, or done by several at once, each object is whole or not there, and the next round goes on:
nothing is written over but what the app writes over.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event

from msgspec.structs import replace
from ulid import ULID

from ...common import instants
from ...errors import Corruption, Forbidden, NotFound, ObjectNotFound, Refused, Unavailable
from ...snapshot.cut import replicas
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import without_retired
from ...snapshot.cut.replicas import CUTS, PREFIX, REPLICAS, KnownReplica, ReplicaCut, SinkRest
from ...snapshot.cut.stored import SNAPSHOTS, Snapshot
from ...snapshot.take.audit_log import newest_operation
from ...snapshot.take.capture import discard
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore
from ...store.read.copier import WORKERS, Copier
from ...store.versions import codec, history, keys
from ...store.versions.horizon import Boundary
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts
from .beside_versions import copy_others, copy_rules, was_forgotten
from .kafka_state import anchors_of, records_in_flight, sink_rests
from .replica_standing import Pair
from .replicate_plan import Todo, every_version, last_final
from .sweep import drop_older, settle, sweep

_CHUNK = 128
"""Versions of a stage read ahead: their SSTs are copied together."""
_ATTEMPTS = 5
"""Rounds begun anew because something else went on at the same time."""
_BEAT_MS = 60_000
"""A replica that lacks nothing says so again after this time."""


class _Raced(Exception):
    """Somebody else copies to the same replica, and was at the same cut."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round copied."""

    cut: ReplicaCut
    """What the replica is complete up to."""
    versions: Mapping[str, int]
    """How many versions of each stage came."""
    objects: int
    bytes: int
    removed: int
    """Objects that went, as they did from the app."""
    took_ms: int

    @property
    def is_news(self) -> bool:
        """Whether anything came or went."""
        return bool(self.objects or self.removed)


@dataclass(slots=True)
class Replicator:
    """Copies one app from `store` to `target`; later rounds know what earlier ones found there."""

    store: ObjectStore
    target: ObjectStore
    app: str
    by: str
    reader: Topics | None = None
    """None where nothing says where Kafka is: then what is on the way is not kept."""
    workers: int = WORKERS
    on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None
    recovering: bool = False
    """Whether the caller recovers the app from this replica, and this is the last that is copied."""
    copier: Copier = field(init=False)
    pair: Pair = field(init=False)
    _same: dict[str, int] = field(default_factory=dict)
    """By stage, a version that is the same in both."""
    _swept: object = None
    _limit: Boundary | None = None
    _forgotten: str = ""

    def __post_init__(self) -> None:
        self.copier = Copier(self.store, self.target, self.workers, self.on_progress)
        self.pair = Pair(self.store, self.target, self.app)

    def plan(self) -> Todo:
        """What is to be copied. Raises as `Pair.replica`, and `Refused` where the app has collected what comes next."""
        self._begun()
        return self._plan()

    def _begun(self) -> bool:
        return self.pair.replica(recovering=self.recovering) is not None

    def _plan(self) -> Todo:
        return every_version(self.store, self.app, {stage: head.version for stage, head in self._there()})

    def round(self) -> Round:
        """Copy all that is missing.

        Raises as `plan`; `Corruption` where an object of the app is damaged, `Refused` where the replica was written to
        by others, or others copy to it all the time, and `Unavailable`: the next round goes on.
        """
        began_ms, objects, size = instants.now_ms(), self.copier.objects, self.copier.copied_bytes
        for attempt in range(_ATTEMPTS):
            is_last, known = attempt == _ATTEMPTS - 1, self._given_up()
            try:
                done = self._round()
            except _Raced:
                if is_last:
                    raise Refused(
                        f"somebody else copies {self.app} to {self.target.url}, and was faster {_ATTEMPTS} times",
                        hint="nothing is lost: that one goes on, and so does this one when it is started again",
                    ) from None
            except (Corruption, NotFound, ObjectNotFound):
                # What was collected, or had keys taken out of it, while it was copied is not missing.
                if is_last or self._given_up() == known:
                    raise
            else:
                copied = (self.copier.objects - objects, self.copier.copied_bytes - size)
                return dataclasses.replace(
                    done, objects=copied[0], bytes=copied[1], took_ms=instants.now_ms() - began_ms
                )
        raise AssertionError

    def _given_up(self) -> tuple[Boundary, str]:
        """What says which objects the app has given up."""
        return last_final(self.store, self.app), was_forgotten(self.store, self.app)

    def run(
        self,
        every_ms: int,
        over: Event,
        on_round: Callable[[Round], None],
        on_trouble: Callable[[Unavailable], None],
    ) -> None:
        """Rounds until it is `over`, at most one in `every_ms`.

        What is away is tried again, and `on_trouble` told of it. Raises as `round` else.
        """
        while not over.is_set():
            began = time.monotonic()
            try:
                on_round(self.round())
            except Unavailable as error:
                on_trouble(error)
            over.wait(max(0.0, every_ms / 1_000 - (time.monotonic() - began)))

    def _round(self) -> Round:
        seen_ms, begun = instants.now_ms(), self._begun()
        todo = self._plan()
        if not begun:
            self.pair.begin(self.by)
        last = replicas.CUTS.newest(self.target, self.app)
        self._copy_rules()
        for stage, head in self._there():
            if self._same.get(stage) != head.version:
                self.pair.check_same(stage, head.version)
        for stage, versions in todo.versions.items():
            for begin in range(0, len(versions), _CHUNK):
                self._copy_versions(stage, versions[begin : begin + _CHUNK])
        if last is None:
            self.pair.note_begun(self.by)
        copy_others(self.copier, self.app)
        while was_forgotten(self.store, self.app) != self._forgotten:
            self._copy_rules()  # what was copied meanwhile may need what that names
        snapshots = tuple(self._copy_snapshots(todo, last))
        self._settle(todo)
        cut = self._put_cut(todo, snapshots, last, seen_ms)
        # With who the app is the replica is there for readers.
        if not self.copier.put(key := keys.app_info(self.app), self.store.get(key)):
            raise self.pair.by_hand(key)
        self._tell(cut)
        removed = self._sweep(todo, cut, last)
        counts = {stage: len(each) for stage, each in todo.versions.items() if each}
        return Round(cut, counts, 0, 0, removed, 0)

    def _settle(self, todo: Todo) -> None:
        """Say what may exist before the cut is: readers would take versions that the app collected for missing."""
        if self.recovering or self._limit == todo.limit:
            return
        try:
            settle(self.target, self.app, todo, by=self.by)
        except Refused as error:
            raise _Raced from error
        self._limit = todo.limit

    def _copy_rules(self) -> None:
        self._forgotten = was_forgotten(self.store, self.app)
        copy_rules(self.copier, self.app)

    def _there(self) -> Iterator[tuple[str, Manifest]]:
        """The newest version of each stage in the target."""
        for stage in self.target.list_folders(keys.stages(self.app)):
            head = history.head(self.target, self.app, stage, hint=self._same.get(stage, 0))
            if head is not None:
                yield stage, head

    def _copy_versions(self, stage: str, versions: tuple[int, ...]) -> None:
        """Copy these versions of a stage, ascending, with the SSTs that they name."""

        def read(version: int) -> tuple[str, bytes, Manifest]:
            key = keys.manifest(self.app, stage, version)
            data = self.store.get(key)
            return key, data, codec.decode(data, Manifest, key=key)

        found = tuple(many(read, versions, self.workers))
        ssts = {sst.object: sst for _, _, manifest in found for sst in all_ssts(manifest)}
        if elsewhere := next((sst.root for sst in ssts.values() if sst.root), ""):
            raise Refused(
                f"{self.app}/{stage} names SSTs under {elsewhere}, as a clone across roots does: a replica would not "
                "hold all that it needs",
                hint=f"replicate a clone with everything of its own: slackwater clone {self.app} NAME --deep --to ROOT",
            )
        self.copier.ssts(ssts.values(), may_be_gone=bool(self._forgotten))
        # In their order: the newest that is there is never ahead of one that is not.
        for key, data, manifest in found:
            if not self.copier.put(key, data):
                raise self.pair.by_hand(key)
            self._same[stage] = max(manifest.version, self._same.get(stage, 0))

    def _copy_snapshots(self, todo: Todo, last: ReplicaCut | None) -> Iterator[Snapshot]:
        """Copy the app's snapshots, and what they keep; gives those that are there, and are the app's."""
        for each in todo.snapshots:
            there = SNAPSHOTS.find(self.target, each.name, self.app)
            if there is not None and there != each and (last is None or each.name not in last.snapshots):
                continue  # the replica has that name for one of its own
            if there != each:
                if not all(map(self.copier.one, sorted(each.object_keys))) and not self._forgotten:
                    continue  # it was removed meanwhile
                SNAPSHOTS.put(self.target, each)
            yield each

    def _put_cut(
        self, todo: Todo, snapshots: tuple[Snapshot, ...], last: ReplicaCut | None, seen_ms: int
    ) -> ReplicaCut:
        """Keep what is on the way at the cut, pin it, and say that all is there, unless that was said just now."""
        stages = {stage: head.version for stage, head in todo.cut.items()}
        mine = {each.name for each in snapshots}
        # Those that the app has given up, until a sweep has taken them: it may be killed before.
        mine |= {
            name
            for name in (last.snapshots if last is not None else ())
            if name not in mine and SNAPSHOTS.find(self.target, name, self.app) is not None
        }
        names = tuple(sorted(mine))
        if last is not None and last.stages == stages and (not last.lacks or self.reader is None):
            if last.snapshots == names and seen_ms - last.seen_ms < _BEAT_MS:
                return last
            cut = replace(last, number=last.number + 1, seen_ms=seen_ms, snapshots=names, by=self.by)
        else:
            number = last.number + 1 if last is not None else 1
            cut = replace(self._kept(todo, stages, snapshots, number, seen_ms), snapshots=names)
        if not self.recovering:
            self.pair.check_not_recovering()
        if CUTS.add(self.target, cut) != cut:
            raise _Raced
        return cut

    def _kept(
        self, todo: Todo, stages: dict[str, int], snapshots: tuple[Snapshot, ...], number: int, seen_ms: int
    ) -> ReplicaCut:
        """The cut, with what is kept of Kafka for it, pinned by a snapshot of the replica's own."""
        app, cut = self.app, without_retired(self.store, self.app, todo.cut)
        while SNAPSHOTS.find(self.target, f"{PREFIX}{number}", app) is not None:
            number += 1  # of a round that was killed, or goes on beside this one
        name, sinks, lacks = f"{PREFIX}{number}", tuple[SinkRest, ...](), ""
        if cut.stages:
            channels, lacks = records_in_flight(self.store, self.target, cut, name, snapshots, self.reader)
            sinks, lacks_rows = sink_rests(self.store, self.target, cut, name, self.reader)
            lacks = "; ".join(filter(None, (lacks, lacks_rows)))
            ulid = ULID()
            at_ms = ulid.milliseconds
            pin = Snapshot(
                name, str(ulid), app, at_ms, at_ms, "instant", cut.versions, self.by, channels=channels
            )  # fmt: skip
            if SNAPSHOTS.add(self.target, pin) != pin:
                own = keys.snapshot_objects(app, name)
                captured = (*channels, *(each.rows for each in sinks))
                discard(
                    self.target, (each for each in captured if each.objects and each.objects[0].key.startswith(own))
                )
                raise _Raced
        time_ms = max((head.time_ms for head in todo.cut.values()), default=0)
        return ReplicaCut(
            app=app,
            number=number,
            stages=stages,
            time_ms=time_ms,
            seen_ms=seen_ms,
            snapshot=name if cut.stages else "",
            lacks=lacks,
            sinks=sinks,
            anchors=anchors_of(cut, self.reader),
            by=self.by,
        )

    def _tell(self, cut: ReplicaCut) -> None:
        """Leave word with the app of how far its replica is; who may only read there need not."""
        at = (cut.stages, cut.time_ms, cut.seen_ms, cut.lacks, self.by)
        try:
            REPLICAS.put(self.store, KnownReplica(self.app, replicas.root_id(self.target.url), self.target.url, *at))
        except Forbidden:
            return

    def _sweep(self, todo: Todo, cut: ReplicaCut, last: ReplicaCut | None) -> int:
        """Take away what the app has not any more, when that may be something; how many objects."""
        if self.recovering:
            return 0  # an earlier cut may be what the app goes on from
        self.pair.check_not_recovering()
        if last is None or cut != last or self._swept is None:
            drop_older(self.target, cut)
        # `gc` and `forget` delete, then log: a sweep before that is too early, and the entry asks for another.
        state = (todo.limit, cut.snapshots, self._forgotten, newest_operation(self.store, self.app))
        if self._swept == state:
            return 0
        gone = sweep(self.store, self.target, self.app, todo, cut.snapshots, by=self.by)
        for key in gone or ():
            self.copier.forget(key)
        self._swept = state if gone is not None else None
        return len(gone or ())
