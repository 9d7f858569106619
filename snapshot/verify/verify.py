"""Proving a cut: recomputing from the objects themselves that it is consistent, complete and undamaged.

Shallow, from manifests and the sizes of objects; deep, from every byte, and from Kafka where it still has the records.
What damage does is in the report; an error is raised only for what cannot be looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Corruption, NotFound, Refused, SlackwaterError, Unavailable
from ...store.archive import index
from ...store.archive.extents import Extent, minus
from ...store.archive.index import ArchiveIndex, ArchiveObject
from ...store.archive.objects import ArchivedRecords, ArchiveWriter, fetch
from ...store.objects.counting import CountingStore
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, keys
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import all_ssts, side_manifests, tables_of
from ..cut.graph import Cut, Thinned, channels, violations
from ..cut.in_flight import InFlight
from ..cut.kafka_topics import Topics
from ..cut.moments import stages_of
from ..cut.refs import Named, Ref, parse
from ..cut.replicas import REPLICAS
from ..cut.resolve import cut_at
from ..cut.stored import Snapshot, read_snapshot
from ..status.archives import ArchiveStatus, status_of
from .captured import channel_states, check_captured, check_markers, markers_of, recount, reread_markers
from .ledger import LedgerEntry, balance, entries
from .report import Finding, Tally, Verified, as_sentence, noted, tally
from .sst import check_entries, check_sizes, reread_sst
from .topics import check_topics
from .version_chain import last_step, whole_history


def check_archives(
    store: ObjectStore, app: str, *, deep: bool, on_progress: Callable[[str], None]
) -> tuple[tuple[ArchiveStatus, ...], tuple[Verified, ...]]:
    """What the archives of an app hold, and what is not as it must be. With `deep`, every record is read.

    Raises only `Unavailable`.
    """
    there: list[ArchiveStatus] = []
    checked: list[Verified] = []
    wrong: list[str] = []
    with noted(wrong):
        for archive in index.all_of(store, app):
            there.append(status_of(archive))
            if deep:
                checked += _reread(store, archive, on_progress)
            else:
                sizes = {each.object: each.bytes for each in archive.objects}
                checked += (replace(each, check="archives") for each in check_sizes(store, sizes))
    if wrong:
        checked.append(Verified("archives", f"{app}/input/", tuple(wrong), 0))
    return tuple(there), tuple(checked)


def _reread(store: ObjectStore, archive: ArchiveIndex, on_progress: Callable[[str], None]) -> Iterator[Verified]:
    for number, one in enumerate(archive.objects, 1):
        on_progress(f"input archive of {archive.topic}: object {number} of {len(archive.objects)}")
        wrong: list[str] = []
        with noted(wrong):
            fetch(store, one)
            wrong += _wrong_rows(store, archive, one)
        yield Verified("archives", one.object, tuple(wrong))


def _wrong_rows(store: ObjectStore, archive: ArchiveIndex, one: ArchiveObject) -> Iterator[str]:
    """What the records say that the index does not."""
    order, outside = ArchiveWriter(), set[Extent]()
    times: list[int] = []
    try:
        for rows in ArchivedRecords(store, one).all():
            order.append(rows)
            times += pc.min_max(rows["timestamp"].cast("int64")).as_py().values()
            if pc.any(pc.not_equal(rows["topic"], archive.topic)).as_py():
                yield f"object {one.object} has records of another topic than {archive.topic}"
            places = rows.group_by("partition", use_threads=False).aggregate([("offset", "min"), ("offset", "max")])
            for each in places.to_pylist():
                whole = Extent(each["partition"], each["offset_min"], each["offset_max"] + 1)
                for hole in minus((whole,), one.extents):
                    inside = pc.and_(pc.equal(rows["partition"], hole.partition), pc.less(rows["offset"], hole.end))
                    if pc.any(pc.and_(inside, pc.greater_equal(rows["offset"], hole.first))).as_py():
                        outside.add(hole)
    except ValueError as error:
        yield f"object {one.object}: {error}"
        return
    except SlackwaterError as error:
        yield as_sentence(error)
        return
    if outside:
        yield f"object {one.object} has records at {min(outside)}, which it does not say"
    if order.num_rows != one.rows:
        yield f"object {one.object} has {order.num_rows} records; expected {one.rows}"
    if (min(times), max(times)) != (one.time_min_ms, one.time_max_ms):
        yield f"object {one.object} has records of other times than its index says"


class _PatientReader:
    """Kafka, which is waited for once: after that it is away for as long as verifying lasts."""

    def __init__(self, reader: Topics) -> None:
        self._reader = reader
        self._away: Unavailable | None = None

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        with self._waiting():
            yield from self._reader.read(in_flight)

    def marker(self, topic: str, partition: int, offset: int, /) -> str | None:
        with self._waiting():
            return self._reader.marker(topic, partition, offset)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._away is not None:
            raise self._away
        try:
            yield
        except Unavailable as error:
            self._away = error
            raise


@dataclass(frozen=True, slots=True)
class Report:
    """What verifying a cut found."""

    app: str
    ref: str
    """The cut in short, as `Cut.ref`."""
    versions: dict[str, int]
    """Of each stage whose manifest can be read, upstream first."""
    snapshot: str
    """The snapshot that names the cut, or empty."""
    deep: bool
    ledger: tuple[LedgerEntry, ...]
    """Every channel, once for each stage that reads it."""
    checks: tuple[Tally, ...]
    differences: tuple[Finding, ...]
    """Empty for a cut that is what it claims to be."""
    not_reread: tuple[str, ...]
    """What was to be read again and is not there any more, or not within reach. No difference."""
    not_looked_at: tuple[str, ...]
    """What this verification leaves out, a line each."""
    requests: int
    """To the app's store root."""
    bytes_read: int
    archives: tuple[ArchiveStatus, ...] = ()
    """What the app's input archives hold, whatever the cut."""
    thinned_out: Thinned | None = None
    """Set when garbage collection has left another moment than the one that was asked for."""

    @property
    def consistent(self) -> bool:
        """Whether nothing was found that is not as it must be."""
        return not self.differences


def verify(
    store: ObjectStore,
    at: str | Cut,
    *,
    now_ms: int = 0,
    deep: bool = False,
    reader: Topics | None = None,
    topics: Topics | None = None,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Check everything that must hold for a cut, whose manifests are read again, or for the one that a ref names.

    Relative refs count from `now_ms`. With `deep`, every byte is read, the whole kept history, and records in flight
    and markers from Kafka, unless `reader` is None. Whether topics are still those that were read, `topics` says.
    `on_progress` gets a line on what is being read now and then.

    Raises `Usage` where `at` is no ref, and `NotFound` where an app, stage, snapshot or version is not.
    """
    # A store object of its own, so that what this process has read of the store before does not count.
    counting = CountingStore(store)
    reader = cast("Topics", _PatientReader(reader)) if reader is not None else None
    found: list[Verified] = []
    not_reread: list[str] = []
    recounts: dict[tuple[str, str], tuple[int, ...] | None] = {}
    cut, snapshot = _open_cut(counting, parse(at, now_ms=now_ms) if isinstance(at, str) else at, found)
    kept = {(each.channel, each.receiver): each for each in snapshot.channels} if snapshot is not None else {}
    states = channel_states(counting, cut)
    found += _check_positions(counting, cut)
    if snapshot is not None:
        found += check_captured(snapshot, kept, states)
    if snapshot is not None and snapshot.kind == "markers":
        found += check_markers(snapshot, cut)
        if deep:
            found += reread_markers(snapshot, cut, reader, not_reread)
    found += map(
        check_entries, (each for manifest in cut.stages.values() for each in (manifest, *side_manifests(manifest)))
    )
    if deep:
        found += _reread_stages(counting, cut, on_progress)
        for place, captured in kept.items():
            on_progress(f"records in flight on {captured.channel} to {captured.receiver}")
            markers = markers_of(snapshot, cut, captured.channel, captured.sender)
            recounts[place], checked = recount(counting, captured, markers)
            found += checked
    else:
        found += (one for manifest in cut.stages.values() for one in last_step(counting, manifest))
        found += _check_sizes(counting, cut, snapshot)
    archives, checked = check_archives(counting, cut.app, deep=deep, on_progress=on_progress)
    found += checked
    books = tuple(entries(cut, states, kept, recounts, reader, deep=deep))
    found += map(balance, books)
    not_reread += (
        f"records in flight on {each.channel} to {each.receiver} were not re-read: {each.in_flight.not_reread}"
        for each in books
        if each.in_flight.not_reread
    )
    if topics is not None:
        found += check_topics(counting, cut, topics, not_reread)
    tallies, differences = tally(found)
    return Report(
        app=cut.app,
        ref=cut.ref,
        versions=cut.versions,
        snapshot=cut.snapshot,
        deep=deep,
        ledger=books,
        checks=tallies,
        differences=differences,
        not_reread=tuple(not_reread),
        not_looked_at=tuple(_left_out(counting, cut, deep=deep)),
        requests=counting.requests,
        bytes_read=counting.bytes_read,
        archives=archives,
        thinned_out=cut.thinned,
    )


def _left_out(store: ObjectStore, cut: Cut, *, deep: bool) -> Iterator[str]:
    """Say what verifying a cut does not look at. Two requests; what cannot be read has nothing to add."""
    if not deep:
        yield "bytes of objects beyond their sizes, versions before the last step, records in flight in Kafka (--deep)"
    yield "objects that only other versions and snapshots name"
    if sinks := sorted({name for each in cut.stages.values() for name in each.sinks}):
        yield f"what the sinks {', '.join(sinks)} have published"
    with suppress(Corruption, Refused):
        info = apps.find_app(store, cut.app)
        if info is not None and info.origin is not None and not info.origin.deep:
            yield f"the input archive of {info.origin.app}, which replays of this clone read"
        for each in REPLICAS.all(store, cut.app):
            yield f"the replica in {each.root}: slackwater verify {cut.app} --store {each.root}"


def _open_cut(store: ObjectStore, at: Ref | Cut, found: list[Verified]) -> tuple[Cut, Snapshot | None]:
    """The cut, as far as it can be read, and the snapshot that names it; what cannot be read is added to `found`."""
    snapshot, thinned = None, None
    stages: dict[str, Manifest] = {}
    versions: Mapping[str, int] = {}
    name = at.snapshot if isinstance(at, Cut) else at.moment.name if isinstance(at.moment, Named) else ""
    try:
        if name:
            stages_of(store, at.app, "" if isinstance(at, Cut) else at.stage)
            snapshot = read_snapshot(store, at.app, name)
            versions = snapshot.stages
            if isinstance(at, Cut) and versions != at.versions:
                gone = "it was removed, and taken again at another moment"
                raise NotFound(f"snapshot of app {at.app!r}", name, found=gone)
        elif isinstance(at, Cut):
            versions, thinned = at.versions, at.thinned
        else:
            cut = cut_at(store, at)
            stages, thinned = {**cut.stages}, cut.thinned
        for stage, version in sorted(versions.items()):
            try:
                stages[stage] = history.read(store, at.app, stage, version)
            except (Corruption, NotFound) as error:
                key = keys.manifest(at.app, stage, version)
                missing = isinstance(error, NotFound)
                wrong = f"{key} is missing: {error.message}" if missing else as_sentence(error)
                found.append(Verified("versions", key, (wrong,)))
    except Corruption as error:
        found.append(Verified("versions", error.object_key, (as_sentence(error),), 0))
    cut = Cut(at.app, stages, name if snapshot else "", thinned=thinned)
    if len(stages) == len(versions or stages):
        found.append(Verified("versions", cut.ref, violations(stages), len(stages)))
    return cut, snapshot


def _check_positions(store: ObjectStore, cut: Cut) -> Iterator[Verified]:
    """Whether every reader stands exactly where the version of the sender that it consumed last ended."""
    for channel in channels(cut):
        # Not known where the reader began in the middle, nor of versions that are not kept.
        if channel.input is None or not channel.input.passed:
            continue
        wrong: list[str] = []
        output = None
        with noted(wrong), suppress(NotFound):
            output = history.read(store, cut.app, channel.sender, channel.input.version).outputs.get(channel.name)
            following = history.find(store, cut.app, channel.sender, channel.input.version + 1)
            if following is not None and following.rewind is not None:
                output = None  # it stands where it stood at the moment that the app was rewound to
        if output is not None:
            at = f"{channel.receiver}@v{cut.stages[channel.receiver].version}"
            ended = f"{channel.sender}@v{channel.input.version}"
            offsets = ("offsets", channel.input.offsets, output.ends)
            for what, here, there in (offsets, ("counts", channel.input.passed, output.sent)):
                if here != there:
                    wrong.append(f"{at} stands on {channel.name!r} at {what} {here}; {ended} ended at {there}")
        yield Verified("versions", f"{channel.name} to {channel.receiver}", tuple(wrong), 0)


def _reread_stages(store: ObjectStore, cut: Cut, on_progress: Callable[[str], None]) -> Iterator[Verified]:
    for stage, manifest in sorted(cut.stages.items()):
        checked, first, partitions = whole_history(store, cut.app, stage, on_progress)
        yield checked
        for name, at in tables_of(manifest).items():
            assert at.table is not None  # noqa: S101  what tables_of gives
            for number, sst in enumerate(at.ssts, 1):
                on_progress(f"{name}: SST {number} of {len(at.ssts)}")
                # Of what was written before the kept history, or came with a clone, nobody knows.
                known = partitions if name == stage and 0 < first <= sst.seq_max else frozenset()
                yield from reread_sst(store, sst, at.table, known)


def _check_sizes(store: ObjectStore, cut: Cut, snapshot: Snapshot | None) -> Iterator[Verified]:
    wanted: dict[ObjectStore, dict[str, int]] = {}
    for manifest in cut.stages.values():
        for sst in all_ssts(manifest):
            wrong: list[str] = []
            with noted(wrong):
                wanted.setdefault(store.at(sst.root), {})[sst.object] = sst.bytes
            if wrong:
                yield Verified("objects", sst.object, tuple(wrong))
    for captured in snapshot.channels if snapshot else ():
        for each in captured.objects:
            wanted.setdefault(store, {})[each.key] = each.bytes
    for held_by, expected in wanted.items():
        yield from check_sizes(held_by, expected)
