"""Verification of a cut: checks of its stored objects for consistency, completeness and damage.

Shallow checks use manifests and object sizes. Deep checks read every byte, and Kafka if it still has the records.
Damage is listed in the report; an error is raised only if something cannot be read at all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Corruption, NotFound, Refused, SlackwaterError, Unavailable
from ...store.archive import index
from ...store.archive.extents import Extent, subtract
from ...store.archive.index import ArchiveIndex, ArchiveObject
from ...store.archive.objects import ArchivedRecords, ArchiveWriter, fetch
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts, side_manifests, tables_of
from ..cut.graph import Cut, Thinned, channels, violations
from ..cut.in_flight import InFlight
from ..cut.kafka_topics import KafkaTopics
from ..cut.moments import stages_of
from ..cut.refs import NamedSnapshot, Ref, parse_ref
from ..cut.replicas import REPLICAS
from ..cut.resolve import cut_of_ref
from ..cut.stored import Captured, Snapshot, read_snapshot
from ..status.overview import ArchiveStatus, archive_status
from .captured import (
    channel_states,
    check_captured,
    check_markers,
    check_topics,
    markers_of,
    recount_captured,
    reread_markers,
)
from .ledger import LedgerEntry, check_balance, ledger_entries
from .report import CheckOutcome, Finding, Tally, as_sentence, collect_errors, tally
from .sst import check_entries, check_sizes, reread_sst
from .version_chain import check_history, check_last_step

_ChannelKey = tuple[str, str]


def check_archives(
    store: ObjectStore, app: str, *, deep: bool, on_progress: Callable[[str], None]
) -> tuple[tuple[ArchiveStatus, ...], tuple[CheckOutcome, ...]]:
    """Check the input archives of an app. With `deep`, every record is read. Raises only `Unavailable`."""
    statuses: list[ArchiveStatus] = []
    checked: list[CheckOutcome] = []
    wrong: list[str] = []
    with collect_errors(wrong):
        for archive in index.iter_archives(store, app):
            statuses.append(archive_status(archive))
            if deep:
                checked += _reread_archive(store, archive, on_progress)
            else:
                sizes = {archived.object: archived.bytes for archived in archive.objects}
                checked += (replace(checked_size, check="archives") for checked_size in check_sizes(store, sizes))
    if wrong:
        checked.append(CheckOutcome("archives", f"{app}/input/", tuple(wrong), 0))
    return tuple(statuses), tuple(checked)


def _reread_archive(
    store: ObjectStore, archive: ArchiveIndex, on_progress: Callable[[str], None]
) -> Iterator[CheckOutcome]:
    for number, archived in enumerate(archive.objects, 1):
        on_progress(f"input archive of {archive.topic}: object {number} of {len(archive.objects)}")
        wrong: list[str] = []
        with collect_errors(wrong):
            fetch(store, archived)
            wrong += _archive_object_faults(store, archive, archived)
        yield CheckOutcome("archives", archived.object, tuple(wrong))


def _archive_object_faults(store: ObjectStore, archive: ArchiveIndex, archived: ArchiveObject) -> Iterator[str]:
    order, outside = ArchiveWriter(), set[Extent]()
    times: list[int] = []
    try:
        for rows in ArchivedRecords(store, archived).all_rows():
            order.append(rows)
            times += pc.min_max(rows["timestamp"].cast("int64")).as_py().values()
            if pc.any(pc.not_equal(rows["topic"], archive.topic)).as_py():
                yield f"object {archived.object} has records of another topic than {archive.topic}"
            ranges = rows.group_by("partition", use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
            for row in ranges.to_pylist():
                span = Extent(row["partition"], row["offset_min"], row["offset_max"] + 1)
                for hole in subtract((span,), archived.extents):
                    inside = pc.and_(pc.equal(rows["partition"], hole.partition), pc.less(rows["offset"], hole.end))
                    if pc.any(pc.and_(inside, pc.greater_equal(rows["offset"], hole.first))).as_py():
                        outside.add(hole)
    except ValueError as error:
        yield f"object {archived.object}: {error}"
        return
    except SlackwaterError as error:
        yield as_sentence(error)
        return
    if outside:
        yield f"object {archived.object} has records at {min(outside)}, which its index lacks"
    if order.num_rows != archived.rows:
        yield f"object {archived.object} has {order.num_rows} records; expected {archived.rows}"
    if (min(times), max(times)) != (archived.time_min_ms, archived.time_max_ms):
        yield f"object {archived.object} has records of other times than its index entry says"


class _FailFastReader:
    """Kafka reader that waits for Kafka only once: after the first `Unavailable`, every call raises that error."""

    def __init__(self, reader: KafkaTopics) -> None:
        self._reader = reader
        self._first_error: Unavailable | None = None

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        with self._fail_fast():
            yield from self._reader.read(in_flight)

    def marker_at(self, topic: str, partition: int, offset: int, /) -> str | None:
        with self._fail_fast():
            return self._reader.marker_at(topic, partition, offset)

    @contextmanager
    def _fail_fast(self) -> Iterator[None]:
        if self._first_error is not None:
            raise self._first_error
        try:
            yield
        except Unavailable as error:
            self._first_error = error
            raise


@dataclass(frozen=True, slots=True)
class Report:
    """Result of verifying a cut."""

    app: str
    ref: str
    versions: dict[str, int]
    snapshot: str
    deep: bool
    ledger: tuple[LedgerEntry, ...]
    checks: tuple[Tally, ...]
    differences: tuple[Finding, ...]
    not_reread: tuple[str, ...]
    """Records and markers that could not be read again, because they were deleted or unreachable. Not a difference."""
    not_looked_at: tuple[str, ...]
    """Parts that this verification does not cover, one line each."""
    requests: int
    bytes_read: int
    archives: tuple[ArchiveStatus, ...] = ()
    thinned_out: Thinned | None = None

    @property
    def consistent(self) -> bool:
        return not self.differences


def verify(
    store: ObjectStore,
    at: str | Cut,
    *,
    now_ms: int = 0,
    deep: bool = False,
    reader: KafkaTopics | None = None,
    topics: KafkaTopics | None = None,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Check a cut, given as a ref or as a `Cut`, against all rules of `report.CHECKS`. Reads the cut's manifests again.

    Relative refs count from `now_ms`. With `deep`, every byte and all kept versions are read; with a `reader` as well,
    in-flight records and markers are read in Kafka. With `topics`, checks that Kafka's topics were not recreated.
    `on_progress` is called with progress lines.

    Raises `Usage` (`at` is not a ref) and `NotFound` (no such app, stage, snapshot or version).
    """
    # A new store object, so that objects cached by this process are read again.
    counting = CountingStore(store)
    reader = cast("KafkaTopics", _FailFastReader(reader)) if reader is not None else None
    results: list[CheckOutcome] = []
    not_reread: list[str] = []
    recounts: Mapping[_ChannelKey, tuple[int, ...] | None] = {}
    cut, snapshot = _open_cut(counting, parse_ref(at, now_ms=now_ms) if isinstance(at, str) else at, results)
    captures = (
        {(capture.channel, capture.receiver): capture for capture in snapshot.channels} if snapshot is not None else {}
    )
    states = channel_states(counting, cut)
    results += _check_positions(counting, cut)
    if snapshot is not None:
        results += check_captured(snapshot, captures, states)
    if snapshot is not None and snapshot.kind == "markers":
        results += check_markers(snapshot, cut)
        if deep:
            results += reread_markers(snapshot, cut, reader, not_reread)
    for manifest in cut.stages.values():
        results += map(check_entries, (manifest, *side_manifests(manifest)))
    if deep:
        results += _reread_stages(counting, cut, on_progress)
        recounts, checks = _recount_all(counting, cut, snapshot, captures, on_progress)
        results += checks
    else:
        results += (step for manifest in cut.stages.values() for step in check_last_step(counting, manifest))
        results += _check_sizes(counting, cut, snapshot)
    archives, checked = check_archives(counting, cut.app, deep=deep, on_progress=on_progress)
    results += checked
    ledger = tuple(ledger_entries(cut, states, captures, recounts, reader, deep=deep))
    results += map(check_balance, ledger)
    not_reread += filter(None, map(_why_not_reread, ledger))
    if topics is not None:
        results += check_topics(counting, cut, topics, not_reread)
    tallies, differences = tally(results)
    return Report(
        app=cut.app,
        ref=cut.ref,
        versions=cut.versions,
        snapshot=cut.snapshot,
        deep=deep,
        ledger=ledger,
        checks=tallies,
        differences=differences,
        not_reread=tuple(not_reread),
        not_looked_at=tuple(_uncovered_parts(counting, cut, deep=deep)),
        requests=counting.requests,
        bytes_read=counting.bytes_read,
        archives=archives,
        thinned_out=cut.thinned,
    )


def _recount_all(
    store: ObjectStore,
    cut: Cut,
    snapshot: Snapshot | None,
    captures: Mapping[_ChannelKey, Captured],
    on_progress: Callable[[str], None],
) -> tuple[dict[_ChannelKey, tuple[int, ...] | None], list[CheckOutcome]]:
    counts: dict[_ChannelKey, tuple[int, ...] | None] = {}
    checks: list[CheckOutcome] = []
    for edge, captured in captures.items():
        on_progress(f"records in flight on {captured.channel} to {captured.receiver}")
        markers = markers_of(snapshot, cut, captured.channel, captured.sender)
        counts[edge], checked = recount_captured(store, captured, markers)
        checks += checked
    return counts, checks


def _why_not_reread(entry: LedgerEntry) -> str:
    why = entry.in_flight.not_reread
    return f"records in flight on {entry.channel} to {entry.receiver} were not re-read: {why}" if why else ""


def _uncovered_parts(store: ObjectStore, cut: Cut, *, deep: bool) -> Iterator[str]:
    """Yield the parts that the verification does not cover, one line each. Makes two requests."""
    if not deep:
        yield "contents of objects, versions before the last step, in-flight records in Kafka (--deep)"
    yield "objects that only other versions and snapshots use"
    if sinks := sorted({name for manifest in cut.stages.values() for name in manifest.sinks}):
        yield f"rows published by the sinks {', '.join(sinks)}"
    try:
        info = apps.find_app(store, cut.app)
        if info is not None and info.origin is not None and not info.origin.is_deep:
            yield f"the input archive of {info.origin.app}, which replays of this clone read"
        for replica in REPLICAS.all(store, cut.app):
            yield f"the replica in {replica.root}: slackwater verify {cut.app} --store {replica.root}"
    except (Corruption, Refused) as error:
        yield f"replicas and the source of a clone: {error.message}"


def _open_cut(store: ObjectStore, at: Ref | Cut, results: list[CheckOutcome]) -> tuple[Cut, Snapshot | None]:
    snapshot, thinned = None, None
    stages: dict[str, Manifest] = {}
    versions: Mapping[str, int] = {}
    name = at.snapshot if isinstance(at, Cut) else at.moment.name if isinstance(at.moment, NamedSnapshot) else ""
    try:
        if name:
            stages_of(store, at.app, "" if isinstance(at, Cut) else at.stage)
            snapshot = read_snapshot(store, at.app, name)
            versions = snapshot.stages
            if isinstance(at, Cut) and versions != at.versions:
                reason = "it was removed and taken again at another moment"
                raise NotFound(f"snapshot of app {at.app!r}", name, found=reason)
        elif isinstance(at, Cut):
            versions, thinned = at.versions, at.thinned
        else:
            cut = cut_of_ref(store, at)
            stages, thinned = {**cut.stages}, cut.thinned
        for stage, version in sorted(versions.items()):
            try:
                stages[stage] = history.read(store, at.app, stage, version)
            except (Corruption, NotFound) as error:
                key = keys.manifest(at.app, stage, version)
                missing = isinstance(error, NotFound)
                wrong = f"{key} is missing: {error.message}" if missing else as_sentence(error)
                results.append(CheckOutcome("versions", key, (wrong,)))
    except Corruption as error:
        results.append(CheckOutcome("versions", error.object_key, (as_sentence(error),), 0))
    cut = Cut(at.app, stages, name if snapshot else "", thinned=thinned)
    if len(stages) == len(versions or stages):
        results.append(CheckOutcome("versions", cut.ref, violations(stages), len(stages)))
    return cut, snapshot


def _check_positions(store: ObjectStore, cut: Cut) -> Iterator[CheckOutcome]:
    """Check each reader's offsets: they must be the offsets at which the last consumed version ended."""
    for channel in channels(cut):
        # Unknown if the reader did not start at the beginning of the channel.
        if channel.input is None or not channel.input.rows_passed:
            continue
        wrong: list[str] = []
        output = None
        with collect_errors(wrong), suppress(NotFound):
            output = history.read(store, cut.app, channel.sender, channel.input.version).outputs.get(channel.name)
            following = history.find(store, cut.app, channel.sender, channel.input.version + 1)
            if following is not None and following.rewind is not None:
                output = None  # after a rewind, the reader is at its position of the restored moment
        if output is not None:
            reader = f"{channel.receiver}@v{cut.stages[channel.receiver].version}"
            sender_version = f"{channel.sender}@v{channel.input.version}"
            offsets = ("offsets", channel.input.offsets, output.ends)
            for unit, actual, expected in (offsets, ("counts", channel.input.rows_passed, output.sent)):
                if actual != expected:
                    wrong.append(
                        f"{reader} is at {unit} {actual} of {channel.name!r}; "
                        f"expected {expected}, where {sender_version} ended"
                    )
        yield CheckOutcome("versions", f"{channel.name} to {channel.receiver}", tuple(wrong), 0)


def _reread_stages(store: ObjectStore, cut: Cut, on_progress: Callable[[str], None]) -> Iterator[CheckOutcome]:
    for stage, manifest in sorted(cut.stages.items()):
        yield check_history(store, cut.app, stage, on_progress)
        for name, table_version in tables_of(manifest).items():
            assert table_version.table is not None  # noqa: S101 tables_of returns only versions with a table
            for number, sst in enumerate(table_version.ssts, 1):
                on_progress(f"{name}: SST {number} of {len(table_version.ssts)}")
                yield from reread_sst(store, sst, table_version.table)


def _check_sizes(store: ObjectStore, cut: Cut, snapshot: Snapshot | None) -> Iterator[CheckOutcome]:
    sizes: dict[ObjectStore, dict[str, int]] = {}
    for manifest in cut.stages.values():
        for sst in all_ssts(manifest):
            wrong: list[str] = []
            with collect_errors(wrong):
                sizes.setdefault(store.at(sst.root), {})[sst.object] = sst.bytes
            if wrong:
                yield CheckOutcome("objects", sst.object, tuple(wrong))
    for captured in snapshot.channels if snapshot else ():
        for captured_object in captured.objects:
            sizes.setdefault(store, {})[captured_object.key] = captured_object.bytes
    for object_store, expected in sizes.items():
        yield from check_sizes(object_store, expected)
