"""`slackwater replicate`: copies new objects of an app to its replica, then records the cut that is complete.

A round copies, in this order: objects without which versions cannot be read, SSTs, manifests, other objects, snapshots,
and Kafka data. Then it writes the boundary of versions, the snapshot that pins the cut, and the cut. Last it deletes
objects that the app has deleted (`delete_removed`). Several processes may copy at once, and each may be killed at any
point: an object in the replica is complete or absent, and the next round continues. An object in the replica is
overwritten only if the app overwrites its own copy.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...common import instants, runtime
from ...common.runtime import Event
from ...errors import Corruption, Forbidden, NotFound, ObjectNotFound, Refused, Unavailable
from ...pipeline.kafka.sources.copying import copy_sources
from ...snapshot.cut import replicas
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import without_retired
from ...snapshot.cut.replicas import (
    REPLICA_CUTS,
    REPLICA_SNAPSHOT_PREFIX,
    REPLICAS,
    KnownReplica,
    ReplicaCut,
    UnpublishedSinkRows,
)
from ...snapshot.cut.stored import SNAPSHOTS, Snapshot
from ...snapshot.take.audit_log import newest_operation
from ...snapshot.take.capture import delete_captured
from ...store.objects.many import map_concurrently
from ...store.read.copier import WORKERS, Copier
from ...store.versions import codec, history, keys
from ...store.versions.horizon import Boundary
from ...store.versions.leaves.objects import bind_reader
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts, leaf_keys
from .kafka_state import copy_in_flight_records, copy_unpublished_rows, read_anchors
from .replica_objects import (
    CopyPlan,
    copy_other_objects,
    copy_reader_objects,
    delete_removed,
    last_boundary,
    newest_erasure_record,
    plan_copy,
    remove_older_cuts,
    update_boundary,
)
from .replica_standing import ReplicaPair

_CHUNK = 128
"""Number of versions of a stage that are read at once, so that their SSTs are copied together."""
_ATTEMPTS = 5
_CUT_INTERVAL_MS = 60_000
"""Interval in milliseconds at which a replica without changes records its cut again."""


class _LostRace(Exception):
    """Another process that replicates to the same root was first to record a cut or boundary."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Result of one round of replication."""

    cut: ReplicaCut
    versions: Mapping[str, int]
    objects: int
    bytes: int
    removed: int
    took_ms: int

    @property
    def has_changes(self) -> bool:
        return bool(self.objects or self.removed)


@dataclass(slots=True)
class Replicator(ReplicaPair):
    """Replicates one app from `store` to `target`. Later rounds reuse the listings of earlier rounds."""

    by: str
    reader: KafkaTopics | None = None
    workers: int = WORKERS
    on_progress: Callable[[int, int], None] = lambda _objects, _bytes: None
    recovering: bool = False
    copier: Copier = field(init=False)
    _verified_versions: dict[str, int] = field(default_factory=dict)
    _last_sweep: object = None
    _limit: Boundary | None = None
    _forgotten: str = ""

    def __post_init__(self) -> None:
        self.copier = Copier(self.store, self.target, self.workers, self.on_progress)

    def plan(self) -> CopyPlan:
        """Return the versions and snapshots that the next round would copy.

        Raises the errors of `check_replica`, and `Refused` if garbage collection has deleted versions to be copied.
        """
        self._is_begun()
        return self._plan()

    def _is_begun(self) -> bool:
        return self.check_replica(recovering=self.recovering) is not None

    def _plan(self) -> CopyPlan:
        return plan_copy(self.store, self.app, {stage: head.version for stage, head in self._target_heads()})

    def run_round(self) -> RoundResult:
        """Copy everything that the replica lacks.

        Raises:
            Refused: Something else has written to the replica, or other processes keep copying to it.
            Corruption: An object of the app is damaged.
            Unavailable: A store did not answer; the next round continues.
            Other errors: those of `plan`.
        """
        began_ms, objects, size = instants.now_ms(), self.copier.objects, self.copier.copied_bytes
        for attempt in range(_ATTEMPTS):
            is_last, given_up = attempt == _ATTEMPTS - 1, self._deletion_records()
            try:
                done = self._round()
            except _LostRace:
                if is_last:
                    raise Refused(
                        f"another process replicates {self.app} to {self.target.url} and was faster {_ATTEMPTS} times",
                        hint="nothing is lost: the other process continues, and this command can be run again",
                    ) from None
            except (Corruption, NotFound, ObjectNotFound):
                # An object that was collected, or rewritten by `forget`, during the round is not missing.
                if is_last or self._deletion_records() == given_up:
                    raise
            else:
                copied = (self.copier.objects - objects, self.copier.copied_bytes - size)
                return dataclasses.replace(
                    done, objects=copied[0], bytes=copied[1], took_ms=instants.now_ms() - began_ms
                )
        raise AssertionError

    def _deletion_records(self) -> tuple[Boundary, str]:
        return last_boundary(self.store, self.app), newest_erasure_record(self.store, self.app)

    def run(
        self,
        every_ms: int,
        stop: Event,
        on_round: Callable[[RoundResult], None],
        on_trouble: Callable[[Unavailable], None],
    ) -> None:
        """Run rounds until `stop` is set. A round starts at most every `every_ms` milliseconds.

        If a store is unavailable, `on_trouble` is called, and the next round retries. Raises the other errors of
        `run_round`.
        """
        while not stop.is_set():
            began = runtime.monotonic()
            try:
                on_round(self.run_round())
            except Unavailable as error:
                on_trouble(error)
            stop.wait(max(0.0, every_ms / 1_000 - (runtime.monotonic() - began)))

    def _round(self) -> RoundResult:
        seen_ms, begun = instants.now_ms(), self._is_begun()
        todo = self._plan()
        if not begun:
            self.mark_replica(self.by)
        last = replicas.REPLICA_CUTS.newest(self.target, self.app)
        self._copy_rules()
        for stage, head in self._target_heads():
            if self._verified_versions.get(stage) != head.version:
                self.check_version_equal(stage, head.version)
        for stage, versions in todo.versions.items():
            for begin in range(0, len(versions), _CHUNK):
                self._copy_versions(stage, versions[begin : begin + _CHUNK])
        if last is None:
            self.log_start(self.by)
        copy_other_objects(self.copier, self.app)
        copy_sources(self.copier, (read.topic for version in todo.cut.values() for read in version.inputs.values()))
        while newest_erasure_record(self.store, self.app) != self._forgotten:
            self._copy_rules()  # objects that were copied meanwhile may need SSTs that only the new record names
        snapshots = tuple(self._copy_snapshots(todo, last))
        self._update_boundary(todo)
        cut = self._record_cut(todo, snapshots, last, seen_ms)
        # Readers see the replica once the app's identity is there.
        if not self.copier.put_if_absent(key := keys.app_info(self.app), self.store.get(key)):
            raise self.foreign_write_error(key)
        self._report_to_app(cut)
        removed = self._sweep(todo, cut, last)
        counts = {stage: len(copied) for stage, copied in todo.versions.items() if copied}
        return RoundResult(cut, counts, 0, 0, removed, 0)

    def _update_boundary(self, todo: CopyPlan) -> None:
        if self.recovering or self._limit == todo.boundary:
            return
        try:
            update_boundary(self.target, self.app, todo, by=self.by)
        except Refused as error:
            raise _LostRace from error
        self._limit = todo.boundary

    def _copy_rules(self) -> None:
        self._forgotten = newest_erasure_record(self.store, self.app)
        copy_reader_objects(self.copier, self.app)

    def _target_heads(self) -> Iterator[tuple[str, Manifest]]:
        for stage in self.target.list_folders(keys.stages(self.app)):
            head = history.head(self.target, self.app, stage, hint=self._verified_versions.get(stage, 0))
            if head is not None:
                yield stage, head

    def _copy_versions(self, stage: str, versions: tuple[int, ...]) -> None:
        def read(version: int) -> tuple[str, bytes, Manifest]:
            key = keys.manifest(self.app, stage, version)
            data = self.store.get(key)
            return key, data, bind_reader(self.store, codec.decode(data, Manifest, key=key))

        manifests = tuple(map_concurrently(read, versions, self.workers))
        ssts = {sst.object: sst for _, _, manifest in manifests for sst in all_ssts(manifest)}
        if elsewhere := next((sst.root for sst in ssts.values() if sst.root), ""):
            raise Refused(
                f"{self.app}/{stage} uses SSTs under {elsewhere}, as a clone across roots does: its replica would be "
                "incomplete",
                hint=f"replicate a deep clone instead: slackwater clone {self.app} NAME --deep --to ROOT",
            )
        self.copier.copy_ssts(ssts.values(), may_be_missing=bool(self._forgotten))
        self.copier.copy_new(key for _, _, manifest in manifests for key in leaf_keys(manifest))
        # In ascending order, so that no version before the newest is ever missing.
        for key, data, manifest in manifests:
            if not self.copier.put_if_absent(key, data):
                raise self.foreign_write_error(key)
            self._verified_versions[stage] = max(manifest.version, self._verified_versions.get(stage, 0))

    def _copy_snapshots(self, todo: CopyPlan, last: ReplicaCut | None) -> Iterator[Snapshot]:
        for snapshot in todo.snapshots:
            copy = SNAPSHOTS.find(self.target, snapshot.name, self.app)
            if copy is not None and copy != snapshot and (last is None or snapshot.name not in last.snapshots):
                continue  # the replica has a snapshot of its own with that name
            if copy != snapshot:
                if not all(map(self.copier.copy_object, sorted(snapshot.object_keys))) and not self._forgotten:
                    continue  # the snapshot was removed meanwhile
                SNAPSHOTS.put(self.target, snapshot)
            yield snapshot

    def _record_cut(
        self, todo: CopyPlan, snapshots: tuple[Snapshot, ...], last: ReplicaCut | None, seen_ms: int
    ) -> ReplicaCut:
        stages = {stage: head.version for stage, head in todo.cut.items()}
        copied_names = {snapshot.name for snapshot in snapshots}
        # Snapshots that the app has removed and that a sweep has not yet removed here, because it was killed.
        copied_names |= {
            name
            for name in (last.snapshots if last is not None else ())
            if name not in copied_names and SNAPSHOTS.find(self.target, name, self.app) is not None
        }
        names = tuple(sorted(copied_names))
        if last is not None and last.stages == stages and (not last.lacks or self.reader is None):
            if last.snapshots == names and seen_ms - last.seen_ms < _CUT_INTERVAL_MS:
                return last
            cut = replace(last, number=last.number + 1, seen_ms=seen_ms, snapshots=names, by=self.by)
        else:
            number = last.number + 1 if last is not None else 1
            cut = replace(self._pin_cut(todo, stages, snapshots, number, seen_ms), snapshots=names)
        if not self.recovering:
            self.check_not_recovering()
        if REPLICA_CUTS.add(self.target, cut) != cut:
            raise _LostRace
        return cut

    def _pin_cut(
        self, todo: CopyPlan, stages: dict[str, int], snapshots: tuple[Snapshot, ...], number: int, seen_ms: int
    ) -> ReplicaCut:
        app, cut = self.app, without_retired(self.store, self.app, todo.cut)
        while SNAPSHOTS.find(self.target, f"{REPLICA_SNAPSHOT_PREFIX}{number}", app) is not None:
            number += 1  # the name is used by a killed or a concurrent round
        name, sinks, lacks = f"{REPLICA_SNAPSHOT_PREFIX}{number}", tuple[UnpublishedSinkRows, ...](), ""
        if cut.stages:
            channels, lacks = copy_in_flight_records(self.store, self.target, cut, name, snapshots, self.reader)
            sinks, lacks_rows = copy_unpublished_rows(self.store, self.target, cut, name, self.reader)
            lacks = "; ".join(filter(None, (lacks, lacks_rows)))
            ulid = runtime.ulid()
            at_ms = ulid.milliseconds
            pin = Snapshot(
                name, str(ulid), app, at_ms, at_ms, "instant", cut.versions, self.by, channels=channels
            )  # fmt: skip
            if SNAPSHOTS.add(self.target, pin) != pin:
                own = keys.snapshot_objects(app, name)
                captured = (*channels, *(sink.rows for sink in sinks))
                delete_captured(
                    self.target,
                    (records for records in captured if records.objects and records.objects[0].key.startswith(own)),
                )
                raise _LostRace
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
            anchors=read_anchors(cut, self.reader),
            by=self.by,
        )

    def _report_to_app(self, cut: ReplicaCut) -> None:
        at = (cut.stages, cut.time_ms, cut.seen_ms, cut.lacks, self.by)
        try:
            REPLICAS.put(self.store, KnownReplica(self.app, replicas.root_id(self.target.url), self.target.url, *at))
        except Forbidden:
            return

    def _sweep(self, todo: CopyPlan, cut: ReplicaCut, last: ReplicaCut | None) -> int:
        if self.recovering:
            return 0  # the recovery may use an earlier cut
        self.check_not_recovering()
        if last is None or cut != last or self._last_sweep is None:
            remove_older_cuts(self.target, cut)
        # `gc` and `forget` delete before they log. A sweep may run in between and miss deletions; the log entry then
        # causes another sweep.
        state = (todo.boundary, cut.snapshots, self._forgotten, newest_operation(self.store, self.app))
        if self._last_sweep == state:
            return 0
        gone = delete_removed(self.store, self.target, self.app, todo, cut.snapshots, by=self.by)
        for key in gone or ():
            self.copier.record_deletion(key)
        self._last_sweep = state if gone is not None else None
        return len(gone or ())
